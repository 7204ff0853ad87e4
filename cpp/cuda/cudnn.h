// cuDNN 9, NVIDIA's library of convolutions, where it is found: its graph interface, by the entry
// points and numbers of the public ABI that npusim uses.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/cuda/context.h"
#include "cpp/cuda/library_call.h"
#include "cpp/device_code/library_problem.h"
#include "cpp/platform/forks.h"

namespace npusim::cuda {

struct CudnnEntries {
  using Status = int;
  using Handle = struct cudnnContext*;
  using Descriptor = void*;

  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Status (*set_stream)(Handle, StreamHandle);
  size_t (*get_version)();
  size_t (*get_cuda_version)();
  Status (*descriptor_create)(int kind, Descriptor*);
  Status (*descriptor_destroy)(Descriptor);
  Status (*descriptor_set)(Descriptor, int attribute, int type, int64_t count, const void*);
  Status (*descriptor_get)(Descriptor, int attribute, int type, int64_t wanted, int64_t* count,
                           void*);
  Status (*descriptor_finalize)(Descriptor);
  Status (*execute)(Handle, Descriptor plan, Descriptor pack);
};

// The library's entry points, found without a device.
class CudnnLibrary {
 public:
  // `driver_version` is 13000 for CUDA 13.0: a library made for a newer major version is not taken.
  // Throws Error(kDevice) that says how to get it.
  CudnnLibrary(std::span<const std::string> folders, int driver_version);

  const CudnnEntries& entries() const noexcept { return entries_; }
  const std::string& path() const noexcept { return path_; }
  size_t version() const noexcept { return version_; }  // 91500
  std::string version_text() const;

 private:
  CudnnEntries entries_{};
  std::string path_;
  size_t version_ = 0;
};

// The library on one device.
class Cudnn {
 public:
  // The context must be current. Throws Error(kDevice).
  Cudnn(std::shared_ptr<const Context> context, std::span<const std::string> folders);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  const CudnnLibrary& library() const noexcept { return library_; }
  CudnnEntries::Handle handle() const noexcept { return handle_; }
  // Puts a plan's work on a stream. The handle belongs to one thread at a time, and so to this
  // call.
  CudnnEntries::Status execute(CudnnEntries::Descriptor plan, CudnnEntries::Descriptor pack,
                               StreamHandle stream) const;

 private:
  std::shared_ptr<const Context> context_;
  CudnnLibrary library_;
  CudnnEntries::Handle handle_ = nullptr;
  mutable ForkSafeMutex turn_;
};

// Null where the library has no plan for the convolution.
std::unique_ptr<LibraryCall> make_call(std::shared_ptr<const Cudnn> cudnn,
                                       const LibraryProblem& problem);

}  // namespace npusim::cuda
