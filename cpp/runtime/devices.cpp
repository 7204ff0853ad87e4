// The table of backends. A new one adds an include and a line.
#include <charconv>
#include <string>

#include "cpp/cpu/device.h"
#if defined(NPUSIM_HAS_CUDA)
#include "cpp/cuda/device.h"
#include "cpp/cuda/parts.h"
#endif
#if defined(NPUSIM_HAS_METAL)
#include "cpp/metal/device.h"
#endif
#include "cpp/null/device.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

struct Backend {
  std::string_view name;
  std::span<const OptionInfo> (*options)();
  std::shared_ptr<Device> (*open)(const DeviceOptions&, const DeviceServices&);
  std::vector<DevicePart> (*parts)(const DeviceServices&) = nullptr;  // null: it brings all
};

constexpr Backend kBackends[] = {
    {"cpu", cpu::device_options, cpu::open_device},
#if defined(NPUSIM_HAS_CUDA)
    {"cuda", cuda::device_options, cuda::open_device, cuda::parts},
#endif
#if defined(NPUSIM_HAS_METAL)
    {"metal", metal::device_options, metal::open_device},
#endif
    {"null", null::device_options, null::open_device},
};

// Backends that builds for other systems have.
struct Elsewhere {
  std::string_view name, system;
};
constexpr Elsewhere kElsewhere[] = {{"cuda", "Linux"}, {"metal", "macOS"}};

const Backend& backend_named(std::string_view name) {
  std::string known;
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return backend;
    known += (known.empty() ? "" : ", ") + std::string(backend.name);
  }
  std::string text = "there is no device " + std::string(name) + " in this build; it has: " + known;
  for (const auto& [elsewhere, system] : kElsewhere) {
    if (elsewhere == name) text += ". Builds for " + std::string(system) + " have it.";
  }
  throw Error(ErrorCode::kDevice, text);
}

// "cuda:1" is option ordinal, "cuda:2,3" option ordinals.
DeviceOptions with_ordinals(DeviceOptions options, std::string_view numbers) {
  if (numbers.empty()) return options;
  numbers.remove_prefix(1);
  int64_t one = 0;
  const char* end = numbers.data() + numbers.size();
  const auto [rest, failure] = std::from_chars(numbers.data(), end, one);
  if (failure == std::errc() && rest == end) {
    options.set("ordinal", one);
  } else {
    options.set("ordinals", std::string(numbers));
  }
  return options;
}

}  // namespace

std::shared_ptr<Device> open_device(std::string_view given, const DeviceOptions& options,
                                    const DeviceServices& services) {
  const std::string_view name = given.substr(0, given.find(':'));
  const DeviceOptions named = with_ordinals(options, given.substr(name.size()));
  const DeviceOptions checked = named.checked(name, device_options(name));
  const int64_t max_memory = checked.number("max_memory");
  if (max_memory < 0) {
    throw Error(ErrorCode::kDevice,
                "max_memory is a count of bytes, or 0 for any; got " + std::to_string(max_memory));
  }
  std::shared_ptr<Device> device = backend_named(name).open(checked, services);
  device->max_memory_ = max_memory;
  return device;
}

std::vector<OptionInfo> device_options(std::string_view name) {
  const std::span<const OptionInfo> own = backend_named(name).options();
  std::vector<OptionInfo> options(own.begin(), own.end());
  options.push_back({"max_memory", int64_t{0},
                     "the most bytes that a program may declare (docs/npubin.md); 0: any"});
  return options;
}

std::vector<DevicePart> device_parts(std::string_view name, const DeviceServices& services) {
  const Backend& backend = backend_named(name);
  return backend.parts == nullptr ? std::vector<DevicePart>() : backend.parts(services);
}

std::vector<std::string_view> device_names() {
  std::vector<std::string_view> names;
  for (const Backend& backend : kBackends) names.push_back(backend.name);
  return names;
}

}  // namespace npusim
