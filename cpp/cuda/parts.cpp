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

// How ranks on this machine's devices would exchange values. Opens none of them.
DevicePart peers() {
  constexpr std::string_view kName = "CUDA peer access";
  try {
    const Driver& driver = cuda::driver();
    int count = 0, can = 1;
    driver.check(driver.device_get_count(&count), "count its devices");
    if (count == 1) return {kName, "one device: there is nothing to reach", true};
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        if (from == to) continue;
        driver.check(driver.device_can_access_peer(&can, from, to), "tell who reaches whom");
        if (can != 0) continue;
        return {kName,
                "device " + std::to_string(from) + " does not reach device " + std::to_string(to) +
                    ": ranks there exchange values by NCCL or through the host's memory",
                false};
      }
    }
    return {kName, std::to_string(count) + " devices reach each other", true};
  } catch (const Error& error) {
    return {kName, error.what(), false};
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
      peers(),
  };
}

}  // namespace npusim::cuda
