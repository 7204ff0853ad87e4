// The CPU as a Device.
#pragma once

#include <memory>

#include "cpp/runtime/device.h"

namespace npusim::cpu {

// Throws Error(kDevice) for options this machine cannot serve.
std::span<const OptionInfo> device_options();
std::shared_ptr<Device> open_device(const DeviceOptions& options, const DeviceServices& services);

}  // namespace npusim::cpu
