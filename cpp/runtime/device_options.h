// Options of a device: values by name. Each backend lists those that it has, and open_device
// refuses others.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace npusim {

using OptionValue = std::variant<bool, int64_t, std::string>;

// One that a backend has.
struct OptionInfo {
  std::string_view name;
  OptionValue otherwise;     // where it is not given; tells its type
  std::string_view meaning;  // for people
};

class DeviceOptions {
 public:
  DeviceOptions() = default;
  DeviceOptions(std::initializer_list<std::pair<const std::string, OptionValue>> values)
      : values_(values) {}

  void set(std::string name, OptionValue value) {
    values_.insert_or_assign(std::move(name), std::move(value));
  }
  // All of `known`, with the values given. Throws Error(kDevice) for one that is not among them and
  // for a value of another type.
  DeviceOptions checked(std::string_view device, std::span<const OptionInfo> known) const;

  // The value of a checked option.
  bool flag(std::string_view name) const { return std::get<bool>(at(name)); }
  int64_t number(std::string_view name) const { return std::get<int64_t>(at(name)); }
  const std::string& text(std::string_view name) const { return std::get<std::string>(at(name)); }

 private:
  const OptionValue& at(std::string_view name) const { return values_.find(name)->second; }

  std::map<std::string, OptionValue, std::less<>> values_;
};

}  // namespace npusim
