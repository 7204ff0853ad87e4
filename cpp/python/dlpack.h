// DLPack (https://dmlc.github.io/dlpack): tensors exchanged with other libraries without a copy.
// Speaks the unversioned capsule, which every producer and consumer accepts.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "cpp/python/buffer.h"

namespace npusim::python {

// The C structs of DLPack's ABI; DLPack's name of a device first.
struct DlDevice {
  int32_t type;
  int32_t id;
  bool operator==(const DlDevice&) const = default;
};
struct DlDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  bool operator==(const DlDataType&) const = default;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlDataType dtype;
  int64_t* shape;
  int64_t* strides;  // null: dense, row-major
  uint64_t byte_offset;
};

DlDataType dl_type(DType dtype);

// Whether the elements lie one after another in row-major order.
bool is_dense(const DlTensor& tensor);

// Throws Error(kInput) for a device that DLPack has no name for.
DlDevice dl_device(const Device& device);

// Whether tensors on a device are lent, and taken, as tensors of the host: the host sees its
// memory, and other libraries have no name for it.
bool lends_host_memory(const Device& device);

// What a tensor on the device is lent as. Throws as dl_device.
DlDevice dl_lent_device(const Device& device);

// Where the elements of a tensor of `bytes` bytes lie, on a device that is known by addresses or
// not.
MemoryRange range_of(const DlTensor& tensor, int64_t bytes, bool has_addresses);

// Puts what a consumer does on its `stream`, as Python's DLPack protocol names it, after the
// device's work; without a stream the host waits.
void hand_over(Device& device, const pybind11::object& stream);

// The capsule of a buffer. The tensor keeps the memory alive.
pybind11::capsule to_dlpack(const DeviceBuffer& buffer);

// Takes the tensor over: dense, row-major, in memory of `device`, of a dtype npusim has; or in the
// host's, of a device that lends that: copied as fill_from_host says. Throws Error(kInput).
DeviceBuffer from_dlpack(const pybind11::capsule& capsule, std::shared_ptr<Device> device,
                         std::optional<bool> copy);

}  // namespace npusim::python
