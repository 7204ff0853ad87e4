// Devices of the C interface.
#include <charconv>
#include <string>
#include <utility>

#include "cpp/c_api/objects.h"

namespace npusim::c_api {
namespace {

// A value of the type that the option has.
OptionValue parse(const OptionInfo& option, const std::string& value) {
  if (std::holds_alternative<std::string>(option.otherwise)) return value;
  if (std::holds_alternative<bool>(option.otherwise)) {
    if (value == "true" || value == "false") return value == "true";
  } else {
    int64_t number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error == std::errc() && stop == end) return number;
  }
  throw Error(ErrorCode::kDevice, "the option " + std::string(option.name) +
                                      " is a number in digits or true or false, not '" + value +
                                      "'");
}

DeviceOptions parse_options(const std::string& device, const npusim_device_options& given) {
  DeviceOptions options;
  const std::vector<OptionInfo> known = device_options(device);
  for (const npusim_option& option : read_structs(given.options, given.option_count, "options")) {
    const std::string name = text(option.name, "the name of an option");
    const std::string value = text(option.value, "the value of an option");
    OptionValue parsed = value;  // an unknown one is refused by name when the device opens
    for (const OptionInfo& info : known) {
      if (info.name == name) parsed = parse(info, value);
    }
    options.set(name, std::move(parsed));
  }
  return options;
}

std::shared_ptr<DeviceObject> open(const std::string& name, const npusim_device_options& given) {
  DeviceServices services;
  for (const char* folder :
       elements(given.library_folders, given.library_folder_count, "library_folders")) {
    services.library_folders.push_back(text(folder, "a library folder"));
  }
  if (given.should_cancel != nullptr) {
    services.interruption = [asked = given.should_cancel, context = given.context] {
      stop_if(asked, context);
    };
  }
  auto made = std::make_shared<DeviceObject>();
  made->device = open_device(name, parse_options(name, given), services);
  made->name = made->device->name();
  made->kind = made->device->kind();
  made->description = made->device->description();
  return made;
}

}  // namespace
}  // namespace npusim::c_api

using namespace npusim;
using namespace npusim::c_api;

size_t npusim_device_count(void) {
  size_t count = 0;
  guarded([&] { count = device_names().size(); });
  return count;
}

const char* npusim_device_name(size_t index) {
  const char* name = nullptr;
  guarded([&] {
    const auto names = device_names();  // of literals
    if (index < names.size()) name = names[index].data();
  });
  return name;
}

void npusim_device_free(npusim_device* device) {
  free_handle(device);
}

npusim_status npusim_device_open(const char* name, const npusim_device_options* options,
                                 npusim_device** device) {
  return guarded([&] {
    require(device, "device");
    give(device, open(text(name, "name"), read_struct(options, "npusim_device_options")));
  });
}

npusim_status npusim_device_get_info(npusim_device* handle, npusim_device_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    Device& device = *held->device;
    StreamDevice* streams = device.streams();
    const auto names = device.foreign_names();
    write_struct(info,
                 {.struct_size = 0,
                  .name = held->name.c_str(),
                  .kind = held->kind.c_str(),
                  .description = held->description.c_str(),
                  .alignment = device.alignment(),
                  .stream = streams == nullptr ? 0 : streams->stream(),
                  .ordinal = device.ordinal(),
                  .uses_host_memory = device.addressing() == Addressing::kHost,
                  .host_visible = device.host_visible(),
                  .synchronous = device.synchronous(),
                  .dlpack_type = names ? names->dlpack_type : 0,
                  .dlpack_id = names ? names->dlpack_id : 0},
                 "npusim_device_info");
  });
}

npusim_status npusim_device_synchronize(npusim_device* handle) {
  return guarded([&] { object(handle)->device->synchronize(); });
}

npusim_status npusim_device_order(npusim_device* handle, uint64_t before, uint64_t after) {
  return guarded([&] {
    const auto held = object(handle);
    StreamDevice* streams = held->device->streams();
    if (streams == nullptr) {
      throw Error(ErrorCode::kInput, "the device " + held->name + " has no streams");
    }
    const uintptr_t own = streams->stream();
    streams->order(before == 0 ? own : before, after == 0 ? own : after);
  });
}
