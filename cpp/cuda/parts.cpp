#include "cpp/cuda/parts.h"

#include <functional>
#include <string>
#include <utility>

#include "cpp/cuda/cublaslt.h"
#include "cpp/cuda/cudnn.h"
#include "cpp/cuda/driver.h"
#include "cpp/cuda/nvrtc.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

using Found = std::pair<std::string, std::string>;  // version, path

DevicePart part(std::string_view name, const std::function<Found()>& find) {
  try {
    const auto [version, path] = find();
    return {name, version + " in " + path, true};
  } catch (const Error& error) {
    return {name, error.what(), false};
  }
}

// Libraries are found whether or not there is a driver, which may be what is missing.
int driver_version() {
  constexpr int kNewest = 13999;
  try {
    return driver().version;
  } catch (const Error&) {
    return kNewest;
  }
}

}  // namespace

std::vector<DevicePart> parts(const DeviceServices& services) {
  const std::vector<std::string>& folders = services.library_folders;
  return {
      part("CUDA driver", [] { return Found(version_text(driver().version), driver().path); }),
      part("NVRTC",
           [&] {
             const Nvrtc nvrtc = Nvrtc::open(folders);
             return Found(nvrtc.version(), nvrtc.path());
           }),
      part("cuBLASLt",
           [&] {
             const CublasLtLibrary library(folders, driver_version());
             return Found(library.version_text(), library.path());
           }),
      part("cuDNN",
           [&] {
             const CudnnLibrary library(folders, driver_version());
             return Found(library.version_text(), library.path());
           }),
  };
}

}  // namespace npusim::cuda
