#include "cpp/cuda/cudnn.h"

#include <mutex>

#include <optional>

#include "cpp/cuda/library.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr size_t kOldest = 90000;
constexpr size_t kBeyond = 100000;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kDevice, why);
}

}  // namespace

CudnnLibrary::CudnnLibrary(std::span<const std::string> folders, int driver_version) {
  const std::string names[] = {platform::cuda_library_name(platform::CudaLibrary::kCudnn, 9)};
  const std::optional<Library> library = find_library(names, folders);
  if (!library) {
    refuse("cuDNN was not found (" + names[0] +
           "); npusim's own kernels do its work. Install it: pip install nvidia-cudnn-cu" +
           std::to_string(driver_version / 1000) +
           ", or set NPUSIM_CUDA_PATH to the folder it lies in.");
  }
  path_ = library->path;
  const auto need = [&](const char* symbol, auto& to) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(
        platform::library_symbol(library->handle, symbol));
    if (to == nullptr) refuse(path_ + " is no cuDNN 9: it has no " + symbol);
  };
  need("cudnnCreate", entries_.create);
  need("cudnnDestroy", entries_.destroy);
  need("cudnnSetStream", entries_.set_stream);
  need("cudnnGetVersion", entries_.get_version);
  need("cudnnGetCudartVersion", entries_.get_cuda_version);
  need("cudnnBackendCreateDescriptor", entries_.descriptor_create);
  need("cudnnBackendDestroyDescriptor", entries_.descriptor_destroy);
  need("cudnnBackendSetAttribute", entries_.descriptor_set);
  need("cudnnBackendGetAttribute", entries_.descriptor_get);
  need("cudnnBackendFinalize", entries_.descriptor_finalize);
  need("cudnnBackendExecute", entries_.execute);
  version_ = entries_.get_version();
  const auto made_for = static_cast<int>(entries_.get_cuda_version());
  if (version_ < kOldest || version_ >= kBeyond || made_for / 1000 > driver_version / 1000) {
    refuse(path_ + " is cuDNN " + version_text() + " for CUDA " + cuda::version_text(made_for) +
           "; the driver is for CUDA " + cuda::version_text(driver_version) +
           ", and npusim uses versions 9");
  }
}

// 9.15.1 is 91501.
std::string CudnnLibrary::version_text() const {
  return std::to_string(version_ / 10000) + "." + std::to_string(version_ % 10000 / 100) + "." +
         std::to_string(version_ % 100);
}

Cudnn::Cudnn(std::shared_ptr<const Context> context, std::span<const std::string> folders)
    : context_(std::move(context)), library_(folders, context_->driver().version) {
  if (library_.entries().create(&handle_) != 0) refuse(library_.path() + " does not start");
}

CudnnEntries::Status Cudnn::execute(CudnnEntries::Descriptor plan, CudnnEntries::Descriptor pack,
                                    StreamHandle stream) const {
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  const CudnnEntries::Status status = library_.entries().set_stream(handle_, stream);
  return status == 0 ? library_.entries().execute(handle_, plan, pack) : status;
}

Cudnn::~Cudnn() {
  const Current current(*context_);
  library_.entries().destroy(handle_);
}

}  // namespace npusim::cuda
