#include "cpp/runtime/device_buffer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpp/runtime/borrowed_memory.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t kMostBytes = int64_t{1} << 40;

bool is_own(const Buffers& buffers) {
  return std::none_of(buffers.begin(), buffers.end(),
                      [](const auto& buffer) { return buffer->borrowed; });
}

}  // namespace

void DeviceBuffer::require_writable(int64_t bytes) const {
  if (bytes != memory->bytes() || !writable) {
    throw Error(ErrorCode::kInput, "the buffer cannot take these bytes");
  }
}

std::optional<DType> find_dtype(std::string_view name) {
  for (int code = 0; code <= static_cast<int>(DType::kBool); ++code) {
    const auto dtype = static_cast<DType>(code);
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

DType dtype_from_name(std::string_view name) {
  if (const std::optional<DType> dtype = find_dtype(name)) return *dtype;
  throw Error(ErrorCode::kInput, "npusim has no dtype " + std::string(name));
}

Shape row_major(std::span<const int64_t> shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

int64_t dense_bytes(std::span<const int64_t> shape, DType dtype) {
  int64_t limit = kMostBytes / dtype_size(dtype), elements = 1;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) throw Error(ErrorCode::kInput, "a shape has a negative extent");
    if (extent > limit) throw Error(ErrorCode::kInput, "a tensor is larger than a terabyte");
    if (extent == 0) {
      empty = true;
      continue;
    }
    limit /= extent;
    elements *= extent;
  }
  return empty ? 0 : elements * dtype_size(dtype);
}

DeviceBuffer allocate_buffer(std::shared_ptr<Device> device, DType dtype, Shape shape,
                             std::optional<Shape> alloc_shape, bool zero) {
  DeviceBuffer buffer{.device = std::move(device), .memory = nullptr, .dtype = dtype};
  buffer.shape = std::move(shape);
  buffer.alloc_shape = alloc_shape.value_or(buffer.shape);
  if (buffer.alloc_shape.size() != buffer.shape.size()) {
    throw Error(ErrorCode::kInput, "shape and alloc_shape differ in rank");
  }
  for (size_t i = 0; i < buffer.shape.size(); ++i) {
    if (buffer.shape[i] > buffer.alloc_shape[i]) {
      throw Error(ErrorCode::kInput, "alloc_shape is smaller than shape");
    }
  }
  dense_bytes(buffer.shape, buffer.dtype);  // refuses negative extents
  const int64_t bytes = dense_bytes(buffer.alloc_shape, buffer.dtype);
  const bool is_written = !zero && buffer.shape == buffer.alloc_shape;
  buffer.memory =
      is_written ? buffer.device->allocate_unset(bytes) : buffer.device->allocate(bytes);
  return buffer;
}

void fill_from_host(DeviceBuffer& buffer, std::span<std::byte> bytes,
                    std::shared_ptr<const void> owner, std::optional<bool> copy) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (!copy.value_or(false)) buffer.memory = buffer.device->import_host(bytes, std::move(owner));
  buffer.borrowed = buffer.memory != nullptr;
  if (buffer.borrowed) return;
  if (copy == false && size > 0) {
    throw Error(ErrorCode::kInput, "the device " + std::string(buffer.device->name()) +
                                       " cannot use these " + std::to_string(size) +
                                       " bytes where they lie; leave copy out, or say copy=True");
  }
  buffer.memory = buffer.device->allocate_unset(size);
  buffer.device->upload(*buffer.memory, 0, bytes);
}

DeviceBuffer buffer_over_host(std::shared_ptr<Device> device, DType dtype, Shape shape,
                              std::span<std::byte> bytes, bool writable,
                              std::shared_ptr<const void> owner, std::optional<bool> copy) {
  DeviceBuffer buffer{.device = std::move(device), .memory = nullptr, .dtype = dtype};
  if (static_cast<int64_t>(bytes.size()) != dense_bytes(shape, dtype)) {
    throw Error(ErrorCode::kInput, "the array is not as dense as its shape and dtype say");
  }
  fill_from_host(buffer, bytes, std::move(owner), copy);
  buffer.shape = buffer.alloc_shape = std::move(shape);
  buffer.writable = !buffer.borrowed || writable;
  return buffer;
}

void require_addresses(const Device& device) {
  if (device.addressing() != Addressing::kHandles) return;
  throw Error(ErrorCode::kInput,
              "memory of the device " + std::string(device.name()) + " has no addresses");
}

DeviceBuffer buffer_at(std::shared_ptr<Device> device, DType dtype, Shape shape, uintptr_t address,
                       std::shared_ptr<const void> owner) {
  DeviceBuffer buffer{.device = std::move(device), .memory = nullptr, .dtype = dtype};
  require_addresses(*buffer.device);
  const MemoryRange at{0, address, dense_bytes(shape, buffer.dtype)};
  const bool on_host = buffer.device->addressing() == Addressing::kHost;
  buffer.shape = buffer.alloc_shape = std::move(shape);
  buffer.memory =
      std::make_shared<BorrowedMemory>(at, on_host ? address_of(at) : nullptr, std::move(owner));
  buffer.borrowed = true;
  return buffer;
}

void show_to_host(DeviceBuffer& buffer) {
  buffer.borrowed = true;
  buffer.device->synchronize();
  buffer.memory->check();
}

void copy_buffer(DeviceBuffer& to, const DeviceBuffer& from) {
  to.require_writable(from.memory->bytes());
  if (to.device != from.device) {
    throw Error(ErrorCode::kInput, "the buffers lie on different devices");
  }
  to.device->copy(*to.memory, 0, *from.memory, 0, from.memory->bytes());
}

std::vector<Binding> input_bindings(const Executor& executor, const Buffers& buffers) {
  std::vector<Binding> out;
  for (const auto& buffer : buffers) {
    // Ranks share what the host has, wherever it is from (ranks.h).
    const Device& device = executor.device();
    const bool shared = device.rank_count() > 1 && device.synchronous() &&
                        buffer->device->addressing() == Addressing::kHost;
    if (!shared && buffer->device.get() != &executor.device()) {
      throw Error(ErrorCode::kInput,
                  "a buffer lies on another device than the executor's; make it "
                  "with the same Device object");
    }
    out.push_back(buffer->binding());
  }
  return out;
}

std::vector<Binding> output_bindings(const Executor& executor, const Buffers& buffers) {
  for (const auto& buffer : buffers) {
    if (!buffer->writable) throw Error(ErrorCode::kInput, "an output buffer is read only");
  }
  return input_bindings(executor, buffers);
}

bool has_to_settle(const Executor& executor, size_t method, const Buffers& inputs,
                   const Buffers& outputs) {
  return executor.can_fail(method) || !is_own(inputs) || !is_own(outputs);
}

}  // namespace npusim
