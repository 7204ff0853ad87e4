// A Device that computes nothing.
#pragma once

#include <memory>

#include "cpp/runtime/device.h"

namespace npusim::null {

std::span<const OptionInfo> device_options();
std::shared_ptr<Device> open_device(const DeviceOptions& options, const DeviceServices& services);

}  // namespace npusim::null
