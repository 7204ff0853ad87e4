// The code of one kernel on one device: loaded as it is, or compiled from its source.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/cuda/context.h"
#include "cpp/cuda/image.h"

namespace npusim::cuda {

class Module {
 public:
  // `folders` is where NVRTC may lie. The context must be current. Throws Error(kVersion) when the
  // image has nothing for this device, Error(kDevice) when the compiler or the driver fails, and
  // Error(kFormat) for a damaged source.
  Module(std::shared_ptr<const Context> context, const Image& image,
         std::span<const std::string> folders, const std::string& what);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // The function of a launch, which must take `params` pointers and then `maps` maps, made ready
  // for its dynamic shared memory. Throws Error(kFormat).
  FunctionHandle function(const CudaLaunch& launch, size_t params, size_t maps) const;

 private:
  void load(std::span<const std::byte> cubin);
  void check_params(FunctionHandle function, const std::string& entry, size_t params,
                    size_t maps) const;

  std::shared_ptr<const Context> context_;
  std::string what_;
  ModuleHandle handle_ = nullptr;
};

// The cubin of an image for a device: its own where that runs, one from the cache, or a fresh one.
std::vector<std::byte> cubin_for(const Context& context, const Image& image,
                                 std::span<const std::string> folders, const std::string& what);

}  // namespace npusim::cuda
