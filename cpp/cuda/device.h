// A CUDA device as a Device.
#pragma once

#include <memory>

#include "cpp/runtime/device.h"

namespace npusim::cuda {

// Throws Error(kDevice) in a sentence for people: no driver, one that is too old, no such device.
std::span<const OptionInfo> device_options();
std::shared_ptr<Device> open_device(const DeviceOptions& options, const DeviceServices& services);

}  // namespace npusim::cuda
