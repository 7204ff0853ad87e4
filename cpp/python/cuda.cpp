// What Python asks about CUDA besides its devices: the driver, the compiler, and whose an address
// is.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "cpp/python/bindings.h"
#include "cpp/runtime/error.h"

#if defined(__linux__)
#include "cpp/cuda/cublaslt.h"
#include "cpp/cuda/cudnn.h"
#include "cpp/cuda/driver.h"
#include "cpp/cuda/nvrtc.h"
#endif

namespace py = pybind11;

namespace npusim::python {
namespace {

using Found = std::pair<std::string, std::string>;  // version, path

#if defined(__linux__)

Found cuda_driver() {
  const cuda::Driver& driver = cuda::driver();
  return {cuda::version_text(driver.version), driver.path};
}

Found cuda_compiler(const std::vector<std::string>& folders) {
  const cuda::Nvrtc nvrtc = cuda::Nvrtc::open(folders);
  return {nvrtc.version(), nvrtc.path()};
}

// Found whether or not there is a driver, which may be what is missing.
int driver_version() {
  constexpr int kNewest = 13999;
  try {
    return cuda::driver().version;
  } catch (const Error&) {
    return kNewest;
  }
}

Found cuda_cublaslt(const std::vector<std::string>& folders) {
  const cuda::CublasLtLibrary library(folders, driver_version());
  return {library.version_text(), library.path()};
}

Found cuda_cudnn(const std::vector<std::string>& folders) {
  const cuda::CudnnLibrary library(folders, driver_version());
  return {library.version_text(), library.path()};
}

int cuda_ordinal(uintptr_t address) {
  const cuda::Driver& driver = cuda::driver();
  int ordinal = -1;
  if (driver.pointer_get_attribute(&ordinal, cuda::kDeviceOrdinal, address) != cuda::kSuccess) {
    throw Error(ErrorCode::kInput, "the address is not one of CUDA's");
  }
  return ordinal;
}

#else

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kDevice, "CUDA devices need Linux");
}
Found cuda_driver() {
  refuse();
}
Found cuda_compiler(const std::vector<std::string>&) {
  refuse();
}
Found cuda_cublaslt(const std::vector<std::string>&) {
  refuse();
}
Found cuda_cudnn(const std::vector<std::string>&) {
  refuse();
}
int cuda_ordinal(uintptr_t) {
  refuse();
}

#endif

}  // namespace

void bind_cuda(py::module_& module) {
  module.def("cuda_driver", &cuda_driver, "Version and path of the CUDA driver.");
  module.def("cuda_compiler", &cuda_compiler, py::arg("folders"),
             "Version and path of NVRTC, which may lie in the folders.");
  module.def("cuda_cublaslt", &cuda_cublaslt, py::arg("folders"),
             "Version and path of cuBLASLt, which may lie in the folders.");
  module.def("cuda_cudnn", &cuda_cudnn, py::arg("folders"),
             "Version and path of cuDNN, which may lie in the folders.");
  module.def("cuda_ordinal", &cuda_ordinal, py::arg("address"),
             "The number of the device that memory belongs to.");
}

}  // namespace npusim::python
