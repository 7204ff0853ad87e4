#include "cpp/runtime/dlpack.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cpp/runtime/borrowed_memory.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr int32_t kDlCpu = 1;
constexpr int32_t kDlCudaHost = 3;

enum DlCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

constexpr struct {
  DType dtype;
  uint8_t code, bits;
} kTypes[] = {
    {DType::kFloat32, kFloat, 32}, {DType::kFloat16, kFloat, 16}, {DType::kBfloat16, kBfloat, 16},
    {DType::kFloat64, kFloat, 64}, {DType::kInt64, kInt, 64},     {DType::kInt32, kInt, 32},
    {DType::kInt16, kInt, 16},     {DType::kInt8, kInt, 8},       {DType::kUint8, kUInt, 8},
    {DType::kBool, kBool, 8},
};

DType dtype_of(const DlDataType& given) {
  for (const auto& type : kTypes) {
    if (type.code == given.code && type.bits == given.bits && given.lanes == 1) return type.dtype;
  }
  throw Error(ErrorCode::kInput, "a DLPack tensor has a dtype npusim does not know (code " +
                                     std::to_string(given.code) + ", " +
                                     std::to_string(given.bits) + " bits)");
}

// What an exported tensor points into.
struct Exported {
  std::shared_ptr<Memory> memory;
  std::vector<int64_t> shape, strides;
  DlManagedTensor managed;
};

bool is_on(const DlDevice& given, const Device& device) {
  const DlDevice wanted = dl_lent_device(device);
  if (wanted.type == kDlCpu) return given.type == kDlCpu || given.type == kDlCudaHost;
  return given.type == wanted.type && given.id == wanted.id;
}

}  // namespace

DlDataType dl_type(DType dtype) {
  for (const auto& type : kTypes) {
    if (type.dtype == dtype) return {type.code, type.bits, 1};
  }
  throw Error(ErrorCode::kInput, "DLPack has no such dtype");
}

bool is_dense(const DlTensor& tensor) {
  int64_t* const end = tensor.shape + tensor.ndim;
  if (tensor.strides == nullptr || std::find(tensor.shape, end, 0) != end) return true;
  int64_t step = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return false;
    step *= tensor.shape[i];
  }
  return true;
}

DlDevice dl_device(const Device& device) {
  if (const auto names = device.foreign_names()) return {names->dlpack_type, names->dlpack_id};
  throw Error(ErrorCode::kInput, "DLPack has no name for the device " + std::string(device.name()));
}

bool lends_host_memory(const Device& device) {
  return device.host_visible() && !device.foreign_names();
}

DlDevice dl_lent_device(const Device& device) {
  return lends_host_memory(device) ? DlDevice{kDlCpu, 0} : dl_device(device);
}

void hand_over(Device& device, std::optional<int64_t> stream) {
  StreamDevice* streams = device.streams();
  if (streams == nullptr || !stream) return device.synchronize();
  const uintptr_t own = streams->stream();
  const auto queue = static_cast<uintptr_t>(*stream == 0 ? 1 : *stream);
  if (*stream != -1 && queue != own) streams->order(own, queue);
}

// DLPack has a pointer to the memory, and where the elements begin there: of memory with addresses,
// which is one storage, the pointer alone says it.
MemoryRange range_of(const DlTensor& tensor, int64_t bytes, bool has_addresses) {
  const auto data = reinterpret_cast<uintptr_t>(tensor.data);
  if (has_addresses) return {0, data + static_cast<uintptr_t>(tensor.byte_offset), bytes};
  return {data, static_cast<uintptr_t>(tensor.byte_offset), bytes};
}

DlManagedTensor* lend_dlpack(const DeviceBuffer& buffer) {
  const DlDevice device = dl_lent_device(*buffer.device);
  const bool on_host = lends_host_memory(*buffer.device);
  if (!buffer.writable) {
    throw Error(ErrorCode::kInput,
                "the buffer is read only, which DLPack cannot say; copy it first");
  }
  const bool has_addresses = on_host || buffer.device->addressing() != Addressing::kHandles;
  MemoryRange at = buffer.memory->range();
  if (on_host) at = host_range({buffer.memory->host(), static_cast<size_t>(at.bytes)});
  auto exported = std::make_unique<Exported>();
  exported->memory = buffer.memory;
  exported->shape = buffer.shape;
  exported->strides = row_major(buffer.alloc_shape);
  exported->managed = {
      .tensor = {.data = reinterpret_cast<void*>(has_addresses ? at.offset : at.storage),
                 .device = device,
                 .ndim = static_cast<int32_t>(buffer.shape.size()),
                 .dtype = dl_type(buffer.dtype),
                 .shape = exported->shape.data(),
                 .strides = exported->strides.data(),
                 .byte_offset = has_addresses ? 0 : at.offset},
      .manager = exported.get(),
      .deleter = [](DlManagedTensor* self) { delete static_cast<Exported*>(self->manager); }};
  buffer.memory->lend();
  return &exported.release()->managed;
}

DeviceBuffer describe_dlpack(const DlTensor& tensor, std::shared_ptr<Device> device) {
  if (!is_on(tensor.device, *device)) {
    throw Error(ErrorCode::kInput,
                dl_lent_device(*device).type == kDlCpu
                    ? "a DLPack tensor is not in host memory; copy it there first"
                    : "a DLPack tensor is not on this device; copy it there first");
  }
  if (!is_dense(tensor)) throw Error(ErrorCode::kInput, "a DLPack tensor is not contiguous");
  DeviceBuffer buffer{
      .device = std::move(device), .memory = nullptr, .dtype = dtype_of(tensor.dtype)};
  buffer.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  buffer.alloc_shape = buffer.shape;
  dense_bytes(buffer.shape, buffer.dtype);  // refuses what is no shape
  return buffer;
}

void place_dlpack(DeviceBuffer& buffer, const DlTensor& tensor, std::shared_ptr<const void> owner,
                  std::optional<bool> copy) {
  const int64_t bytes = dense_bytes(buffer.shape, buffer.dtype);
  const Addressing addressing = buffer.device->addressing();
  const bool on_host = addressing == Addressing::kHost || lends_host_memory(*buffer.device);
  const MemoryRange at = range_of(tensor, bytes, on_host || addressing != Addressing::kHandles);
  if (on_host) {
    fill_from_host(buffer, {address_of(at), static_cast<size_t>(bytes)}, std::move(owner), copy);
  } else {
    buffer.memory = std::make_shared<BorrowedMemory>(at, nullptr, std::move(owner));
    buffer.borrowed = true;
  }
}

}  // namespace npusim
