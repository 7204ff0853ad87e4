#include "cpp/cuda/module.h"

#include <optional>

#include "cpp/cuda/kernel_cache.h"
#include "cpp/cuda/nvrtc.h"
#include "cpp/device_code/cache_folder.h"
#include "cpp/device_code/inflate.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr int kMostShared = 100;  // per cent
constexpr size_t kMostSource = size_t{16} << 20;

[[noreturn]] void refuse(ErrorCode code, const std::string& why) {
  throw Error(code, why);
}

// The architecture to compile for: with the image's suffix, where it is this device's.
std::string wanted_arch(const Context& context, const Image& image) {
  return runs_on(image.arch, context.major(), context.minor()) ? image.arch : context.arch();
}

}  // namespace

std::vector<std::byte> cubin_for(const Context& context, const Image& image,
                                 std::span<const std::string> folders, const std::string& what) {
  if (!image.cubin.empty() && runs_on(image.arch, context.major(), context.minor())) {
    return {image.cubin.begin(), image.cubin.end()};
  }
  if (image.source.empty()) {
    refuse(ErrorCode::kVersion, what + ": it was compiled for " + image.arch +
                                    " and brings no source; this device is " + context.arch() +
                                    ". Compile the model again for this device.");
  }
  const std::string source = inflate(image.source, kMostSource, what);
  const std::string arch = wanted_arch(context, image);
  std::vector<std::string> parts = {source, arch};
  parts.insert(parts.end(), image.options.begin(), image.options.end());
  // Code that this driver may be too old for was made for a newer one.
  parts.push_back(version_text(context.driver().version));
  const KernelCache cache;
  const std::string key = cache_key(parts);
  if (std::optional<std::vector<std::byte>> found = cache.find(key)) return std::move(*found);
  std::vector<std::byte> cubin;
  try {
    cubin = Nvrtc::open(folders).compile(source, image.options, arch);
  } catch (const Error& error) {
    refuse(error.code(), what + ": " + error.what());
  }
  cache.store(key, cubin);
  return cubin;
}

Module::Module(std::shared_ptr<const Context> context, const Image& image,
               std::span<const std::string> folders, const std::string& what)
    : context_(std::move(context)), what_(what) {
  load(cubin_for(*context_, image, folders, what));
}

Module::~Module() {
  const Current current(*context_);
  if (handle_ != nullptr) context_->driver().module_unload(handle_);
}

void Module::load(std::span<const std::byte> cubin) {
  const Driver& driver = context_->driver();
  const Result result = driver.module_load_data(&handle_, cubin.data());
  if (result != kSuccess) {
    refuse(ErrorCode::kDevice, what_ + ": the CUDA driver (" + version_text(driver.version) +
                                   ") does not take its code: " + driver.error_text(result));
  }
}

FunctionHandle Module::function(const CudaLaunch& launch, size_t params, size_t maps) const {
  const Driver& driver = context_->driver();
  FunctionHandle function = nullptr;
  const Result found = driver.module_get_function(&function, handle_, launch.entry.c_str());
  if (found != kSuccess) {
    refuse(ErrorCode::kFormat, what_ + ": its code has no " + launch.entry);
  }
  check_params(function, launch.entry, params, maps);
  if (static_cast<int64_t>(launch.shared) > context_->most_shared_memory()) {
    refuse(ErrorCode::kVersion, what_ + ": it needs " + std::to_string(launch.shared) +
                                    " bytes of shared memory a block, this device has " +
                                    std::to_string(context_->most_shared_memory()));
  }
  // One division of memory between cache and shared memory for all kernels: a block cannot join
  // others on a processor that is divided otherwise. A preference, which the driver may not know.
  driver.func_set_attribute(function, kSharedCarveout, kMostShared);
  if (launch.shared > 0) {
    driver.check(
        driver.func_set_attribute(function, kMaxDynamicShared, static_cast<int>(launch.shared)),
        "reserve shared memory");
  }
  return function;
}

// The driver takes as many parameters as the code declares, however many it is given.
void Module::check_params(FunctionHandle function, const std::string& entry, size_t params,
                          size_t maps) const {
  const Driver& driver = context_->driver();
  if (driver.func_get_param_info == nullptr) return;
  const size_t all = params + maps;
  size_t offset = 0, size = 0, count = 0;
  while (count <= all && driver.func_get_param_info(function, count, &offset, &size) == kSuccess) {
    if (size != (count < params ? sizeof(void*) : sizeof(TensorMap))) break;
    ++count;
  }
  if (count != all || driver.func_get_param_info(function, all, &offset, &size) == kSuccess) {
    refuse(ErrorCode::kFormat, what_ + ": " + entry + " does not take the " +
                                   std::to_string(params) + " pointers of its command" +
                                   (maps > 0 ? " and " + std::to_string(maps) + " maps" : ""));
  }
}

}  // namespace npusim::cuda
