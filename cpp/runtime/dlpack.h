// DLPack (https://dmlc.github.io/dlpack): tensors exchanged with other libraries without a copy.
// Speaks the unversioned structs, which every producer and consumer accepts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cpp/runtime/device_buffer.h"

namespace npusim {

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
// Of version 0.x: a tensor that its consumer gives back by calling the deleter.
struct DlManagedTensor {
  DlTensor tensor;
  void* manager;
  void (*deleter)(DlManagedTensor*);
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

// Puts what a consumer does on its `stream` after the device's work: as Python's DLPack protocol
// names it, 1 is the default stream, 2 the thread's, -1 says that it waits by itself. Without a
// stream the host waits.
void hand_over(Device& device, std::optional<int64_t> stream);

// The tensor of a buffer, which keeps the memory alive until its deleter is called. Throws
// Error(kInput) for a buffer that is read only, which DLPack cannot say.
DlManagedTensor* lend_dlpack(const DeviceBuffer& buffer);

// The buffer that a tensor can become: dense, row-major, in memory of `device`, of a dtype npusim
// has; or in the host's, of a device that lends that. Its memory comes with place_dlpack, copied as
// fill_from_host says; `owner` gives the tensor back. Throw Error(kInput).
DeviceBuffer describe_dlpack(const DlTensor& tensor, std::shared_ptr<Device> device);
void place_dlpack(DeviceBuffer& buffer, const DlTensor& tensor, std::shared_ptr<const void> owner,
                  std::optional<bool> copy);

}  // namespace npusim
