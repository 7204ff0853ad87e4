// DLPack's capsules, by which Python libraries hand its tensors (cpp/runtime/dlpack.h) to each
// other.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "cpp/python/held.h"
#include "cpp/runtime/dlpack.h"

namespace npusim::python {

// The capsule of a buffer. The tensor keeps the memory alive.
pybind11::capsule to_dlpack(const DeviceBuffer& buffer);

// Takes the tensor over as describe_dlpack and place_dlpack do. Throws Error(kInput).
DeviceBuffer from_dlpack(const pybind11::capsule& capsule, std::shared_ptr<Device> device,
                         std::optional<bool> copy);

}  // namespace npusim::python
