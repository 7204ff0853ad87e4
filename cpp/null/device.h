// A Device that computes nothing.
#pragma once

#include <memory>

#include "cpp/runtime/device.h"

namespace npusim::null {

std::shared_ptr<Device> open_device(const DeviceOptions& options);

}  // namespace npusim::null
