#include "cpp/runtime/device_options.h"

#include <algorithm>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr const char* kTypes[] = {"true or false", "a whole number", "a text"};  // by index

std::string names_of(std::span<const OptionInfo> known) {
  std::string names;
  for (const OptionInfo& option : known) {
    names += (names.empty() ? "" : ", ") + std::string(option.name);
  }
  return names.empty() ? "none" : names;
}

}  // namespace

DeviceOptions DeviceOptions::checked(std::string_view device,
                                     std::span<const OptionInfo> known) const {
  DeviceOptions all;
  for (const OptionInfo& option : known) all.set(std::string(option.name), option.otherwise);
  for (const auto& [name, value] : values_) {
    const auto found = all.values_.find(name);
    if (found == all.values_.end()) {
      throw Error(ErrorCode::kDevice, "the device " + std::string(device) + " has no option " +
                                          name + "; it has: " + names_of(known));
    }
    if (found->second.index() != value.index()) {
      throw Error(ErrorCode::kDevice,
                  "the option " + name + " of the device " + std::string(device) + " is " +
                      kTypes[found->second.index()] + ", not " + kTypes[value.index()]);
    }
    found->second = value;
  }
  return all;
}

}  // namespace npusim
