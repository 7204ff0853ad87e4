// DeviceBuffer: a dense tensor on a device as callers of the runtime hold it, in Python and through
// the C interface; how one is made, and what runs over such buffers ask of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cpp/runtime/device.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/program.h"

namespace npusim {

struct DeviceBuffer {
  std::shared_ptr<Device> device;
  std::shared_ptr<Memory> memory;
  DType dtype;
  std::vector<int64_t> shape = {};        // what a caller sees
  std::vector<int64_t> alloc_shape = {};  // what the memory holds, dense and row-major
  bool writable = true;
  bool borrowed = false;  // others use the memory as well

  Binding binding() const { return memory->range(); }
  // Throws Error(kInput) for a buffer that is read only or has another number of bytes.
  void require_writable(int64_t bytes) const;
};
using Buffers = std::vector<std::shared_ptr<DeviceBuffer>>;

// The dtype of a name; nothing, or Error(kInput), for a name that is none.
std::optional<DType> find_dtype(std::string_view name);
DType dtype_from_name(std::string_view name);

// Strides, in elements, of a dense row-major tensor.
std::vector<int64_t> row_major(std::span<const int64_t> shape);

// Bytes of a dense tensor. Throws Error(kInput) for a negative or absurd extent.
int64_t dense_bytes(std::span<const int64_t> shape, DType dtype);

// Memory for a tensor of `shape` that is padded to `alloc_shape`, or not where there is none; zero,
// unless the caller says that it writes all of it. Throws Error(kInput).
DeviceBuffer allocate_buffer(std::shared_ptr<Device> device, DType dtype,
                             std::vector<int64_t> shape,
                             std::optional<std::vector<int64_t>> alloc_shape, bool zero);

// Makes a buffer's memory show bytes of the host: them, where the device uses them as they lie and
// no copy is asked for; else a copy. `owner` keeps them alive. Throws Error(kInput) where `copy` is
// false and the device cannot.
void fill_from_host(DeviceBuffer& buffer, std::span<std::byte> bytes,
                    std::shared_ptr<const void> owner, std::optional<bool> copy);

// A buffer that shows dense bytes of the host, as fill_from_host; where it is those bytes it is
// writable only if they are. Throws Error(kInput) for another number of bytes than the shape has.
DeviceBuffer buffer_over_host(std::shared_ptr<Device> device, DType dtype,
                              std::vector<int64_t> shape, std::span<std::byte> bytes, bool writable,
                              std::shared_ptr<const void> owner, std::optional<bool> copy);

// A buffer over memory of the device that `owner` owns. Throws Error(kInput) for a device whose
// memory has no addresses.
DeviceBuffer buffer_at(std::shared_ptr<Device> device, DType dtype, std::vector<int64_t> shape,
                       uintptr_t address, std::shared_ptr<const void> owner);
void require_addresses(const Device& device);

// Waits for what an asynchronous device computes there, before the host uses the memory; from then
// on runs over the buffer are waited for. Throws Error(kDevice) where that work failed.
void show_to_host(DeviceBuffer& buffer);

// Copies all bytes of one buffer to another of the same device. Throws Error(kInput).
void copy_buffer(DeviceBuffer& to, const DeviceBuffer& from);

// What an executor binds for a run. Throw Error(kInput) for buffers of another device, and outputs
// that are read only.
std::vector<Binding> input_bindings(const Executor& executor, const Buffers& buffers);
std::vector<Binding> output_bindings(const Executor& executor, const Buffers& buffers);

// Whether a run over these buffers is to be waited for: it can fail, or memory is used that others
// own, which may go to other uses behind their backs. What is the device's own is freed after the
// work that uses it.
bool has_to_settle(const Executor& executor, size_t method, const Buffers& inputs,
                   const Buffers& outputs);

}  // namespace npusim
