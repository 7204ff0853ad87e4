// DLPack (https://dmlc.github.io/dlpack): tensors exchanged with other libraries without a copy.
// Speaks the unversioned capsule, which every producer and consumer accepts.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "cpp/python/buffer.h"

namespace npusim::python {

// DLPack's name of a device.
struct DlDevice {
  int32_t type;
  int32_t id;
};

// Throws Error(kInput) for a device that DLPack has no name for.
DlDevice dl_device(const Device& device);

// The capsule of a buffer. The tensor keeps the memory alive.
pybind11::capsule to_dlpack(const DeviceBuffer& buffer);

// Takes the tensor over: dense, row-major, in memory of `device`, of a dtype npusim has. Throws
// Error(kInput).
DeviceBuffer from_dlpack(const pybind11::capsule& capsule, std::shared_ptr<Device> device);

}  // namespace npusim::python
