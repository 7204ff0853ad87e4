// What Python objects and DeviceBuffers (cpp/runtime/device_buffer.h) have to do with each other.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "cpp/python/held.h"
#include "cpp/runtime/device_buffer.h"

namespace npusim::python {

// A pointer that keeps a Python object alive and may be dropped without the GIL.
std::shared_ptr<const void> keep_alive(pybind11::object object);

}  // namespace npusim::python
