// The table of backends. A new one adds an include and a line.
#include <string>

#include "cpp/cpu/device.h"
#if defined(__linux__)
#include "cpp/cuda/device.h"
#endif
#include "cpp/null/device.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

struct Backend {
  std::string_view name;
  std::shared_ptr<Device> (*open)(const DeviceOptions&);
};

constexpr Backend kBackends[] = {
    {"cpu", cpu::open_device},
#if defined(__linux__)
    {"cuda", cuda::open_device},
#endif
    {"null", null::open_device},
};

}  // namespace

std::shared_ptr<Device> open_device(std::string_view name, const DeviceOptions& options) {
  std::string known;
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return backend.open(options);
    known += (known.empty() ? "" : ", ") + std::string(backend.name);
  }
  throw Error(ErrorCode::kDevice,
              "there is no device " + std::string(name) + " in this build; it has: " + known);
}

std::vector<std::string_view> device_names() {
  std::vector<std::string_view> names;
  for (const Backend& backend : kBackends) names.push_back(backend.name);
  return names;
}

}  // namespace npusim
