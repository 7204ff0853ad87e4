// What a CUDA device uses that npusim does not bring: the driver, the compiler and the libraries.
#pragma once

#include <vector>

#include "cpp/runtime/device.h"

namespace npusim::cuda {

std::vector<DevicePart> parts(const DeviceServices& services);

}  // namespace npusim::cuda
