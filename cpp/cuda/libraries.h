// The libraries of one device that compute in place of own kernels where they are there: opened
// when a program first has a problem for them.
//
// The environment variable NPUSIM_CUDA_LIBRARIES=off leaves everything to the own kernels.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpp/cuda/context.h"
#include "cpp/cuda/library_call.h"
#include "cpp/device_code/library_problem.h"
#include "cpp/platform/forks.h"

namespace npusim::cuda {

class CublasLt;
class Cudnn;

class Libraries {
 public:
  // `folders` is where they may lie, besides the places of find_library.
  Libraries(std::shared_ptr<const Context> context, std::vector<std::string> folders);
  ~Libraries();

  const std::vector<std::string>& folders() const noexcept { return folders_; }

  // Null where the library is not there, is switched off, or has no plan for the problem. The
  // context must be current.
  std::unique_ptr<LibraryCall> call(const LibraryProblem& problem);

 private:
  std::shared_ptr<const Context> context_;
  std::vector<std::string> folders_;
  bool off_, sought_[2] = {};
  ForkSafeMutex turn_;                        // methods may be made ready by several threads
  std::shared_ptr<const CublasLt> cublaslt_;  // null: not there, or not sought yet
  std::shared_ptr<const Cudnn> cudnn_;
};

}  // namespace npusim::cuda
