// The loaded modules of a device: methods and sizes with the same code share one.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "cpp/cuda/module.h"
#include "cpp/device_code/kernel_store.h"
#include "cpp/platform/forks.h"

namespace npusim::cuda {

class ModuleStore {
 public:
  // `kernels` keeps the modules of code that it has made.
  explicit ModuleStore(KernelStore& kernels) : kernels_(kernels) {}

  // The module of an image of `code`: the same one for all that use it at a time. Throws as Module.
  std::shared_ptr<const Module> module(const std::shared_ptr<const Context>& context,
                                       const KernelCode& code, const Image& image,
                                       std::span<const std::string> folders,
                                       const std::string& what);

 private:
  std::shared_ptr<const Module> known(const KernelCode& code);

  KernelStore& kernels_;
  ForkSafeMutex mutex_;  // never held while code is loaded
  std::map<const std::byte*, std::weak_ptr<const Module>> modules_;  // by where their image lies
};

}  // namespace npusim::cuda
