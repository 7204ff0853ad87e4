#include "cpp/cuda/cublaslt.h"

#include <optional>

#include "cpp/cuda/library.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kDevice, why);
}

std::vector<std::string> names_for(int driver_version) {
  const auto name = [](int version) {
    return platform::cuda_library_name(platform::CudaLibrary::kCublasLt, version);
  };
  if (driver_version >= 13000) return {name(13), name(12)};
  return {name(12)};
}

constexpr size_t kOldest = 120000;

}  // namespace

CublasLtLibrary::CublasLtLibrary(std::span<const std::string> folders, int driver_version) {
  const std::optional<Library> library = find_library(names_for(driver_version), folders);
  if (!library) {
    refuse("cuBLASLt was not found (" + names_for(driver_version).front() +
           "); npusim's own kernels do its work. Install it: pip install nvidia-cublas" +
           (driver_version >= 13000 ? "" : "-cu12") +
           ", or set NPUSIM_CUDA_PATH to the folder it lies in.");
  }
  path_ = library->path;
  const auto need = [&](const char* symbol, auto& to) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(
        platform::library_symbol(library->handle, symbol));
    if (to == nullptr) refuse(path_ + " is no cuBLASLt: it has no " + symbol);
  };
  need("cublasLtCreate", entries_.create);
  need("cublasLtDestroy", entries_.destroy);
  need("cublasLtGetVersion", entries_.get_version);
  need("cublasLtMatmulDescCreate", entries_.product_create);
  need("cublasLtMatmulDescDestroy", entries_.product_destroy);
  need("cublasLtMatmulDescSetAttribute", entries_.product_set);
  need("cublasLtMatrixLayoutCreate", entries_.layout_create);
  need("cublasLtMatrixLayoutDestroy", entries_.layout_destroy);
  need("cublasLtMatrixLayoutSetAttribute", entries_.layout_set);
  need("cublasLtMatmulPreferenceCreate", entries_.preference_create);
  need("cublasLtMatmulPreferenceDestroy", entries_.preference_destroy);
  need("cublasLtMatmulPreferenceSetAttribute", entries_.preference_set);
  need("cublasLtMatmulAlgoGetHeuristic", entries_.heuristics);
  need("cublasLtMatmul", entries_.matmul);
  version_ = entries_.get_version();
  if (version_ < kOldest || version_ >= static_cast<size_t>(driver_version / 1000 + 1) * 10000) {
    refuse(path_ + " is cuBLASLt " + version_text() + "; the driver is for CUDA " +
           cuda::version_text(driver_version) + ", and npusim uses versions from 12.0 on");
  }
}

// 13.1.0 is 130100 since version 12, of which 12.9.1 says 120901.
std::string CublasLtLibrary::version_text() const {
  return std::to_string(version_ / 10000) + "." + std::to_string(version_ % 10000 / 100) + "." +
         std::to_string(version_ % 100);
}

CublasLt::CublasLt(std::shared_ptr<const Context> context, std::span<const std::string> folders)
    : context_(std::move(context)), library_(folders, context_->driver().version) {
  if (library_.entries().create(&handle_) != 0) refuse(library_.path() + " does not start");
}

CublasLt::~CublasLt() {
  const Current current(*context_);
  library_.entries().destroy(handle_);
}

}  // namespace npusim::cuda
