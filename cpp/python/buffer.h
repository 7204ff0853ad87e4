// DeviceBuffer: a tensor on a device, as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cpp/python/held.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/program.h"

namespace npusim::python {

struct DeviceBuffer {
  std::shared_ptr<Device> device;
  std::shared_ptr<Memory> memory;
  DType dtype;
  std::vector<int64_t> shape = {};        // what a caller sees
  std::vector<int64_t> alloc_shape = {};  // what the memory holds, dense and row-major
  bool writable = true;
  bool borrowed = false;  // others use the memory as well

  Binding binding() const { return memory->range(); }
};

// The dtype of a name; nothing, or Error(kInput), for a name that is none.
std::optional<DType> find_dtype(std::string_view name);
DType dtype_from_name(std::string_view name);

// Strides, in elements, of a dense row-major tensor.
std::vector<int64_t> row_major(std::span<const int64_t> shape);

// Bytes of a dense tensor. Throws Error(kInput) for a negative or absurd extent.
int64_t dense_bytes(std::span<const int64_t> shape, DType dtype);

// Makes a buffer's memory show bytes of the host: them, where the device uses them as they lie and
// no copy is asked for; else a copy. `owner` keeps them alive. Throws Error(kInput) where `copy` is
// false and the device cannot.
void fill_from_host(DeviceBuffer& buffer, std::span<std::byte> bytes,
                    std::shared_ptr<const void> owner, std::optional<bool> copy);

// Waits for what an asynchronous device computes there, before the host uses the memory; from then
// on runs over the buffer are waited for. Throws Error(kDevice) where that work failed.
void show_to_host(DeviceBuffer& buffer);

// A pointer that keeps a Python object alive and may be dropped without the GIL.
std::shared_ptr<const void> keep_alive(pybind11::object object);

}  // namespace npusim::python
