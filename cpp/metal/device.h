// A Metal device as a Device: an Apple GPU, whose memory is the host's as well.
#pragma once

#include <memory>

#include "cpp/runtime/device.h"

namespace npusim::metal {

std::span<const OptionInfo> device_options();
// Throws Error(kDevice) in a sentence for people: no such device.
std::shared_ptr<Device> open_device(const DeviceOptions& options, const DeviceServices& services);

}  // namespace npusim::metal
