// Buffers of the C interface.
#include <algorithm>
#include <string>
#include <utility>

#include "cpp/c_api/objects.h"
#include "cpp/runtime/dlpack.h"

namespace npusim::c_api {
namespace {

// Copies rows of a dense tensor into a padded one, or back; `padded` and `dense` lie at axis
// `axis`.
template <typename Copy>
void for_rows(const DeviceBuffer& buffer, size_t axis, size_t padded, size_t dense,
              const Copy& copy) {
  const auto width = static_cast<size_t>(dtype_size(buffer.dtype));
  const size_t rank = buffer.shape.size();
  if (axis + 1 >= rank) {
    copy(padded * width, dense * width,
         (rank == 0 ? 1 : static_cast<size_t>(buffer.shape[axis])) * width);
    return;
  }
  const std::vector<int64_t> wide = row_major(buffer.alloc_shape), close = row_major(buffer.shape);
  for (int64_t i = 0; i < buffer.shape[axis]; ++i) {
    for_rows(buffer, axis + 1, padded + static_cast<size_t>(i * wide[axis]),
             dense + static_cast<size_t>(i * close[axis]), copy);
  }
}

void require_bytes(const DeviceBuffer& buffer, size_t bytes) {
  const int64_t needed = dense_bytes(buffer.shape, buffer.dtype);
  if (static_cast<int64_t>(bytes) == needed) return;
  throw Error(ErrorCode::kInput,
              "the buffer has " + std::to_string(needed) + " bytes, got " + std::to_string(bytes));
}

void give_buffer(npusim_buffer** out, DeviceBuffer made) {
  auto held = std::make_shared<BufferObject>();
  held->buffer = std::make_shared<DeviceBuffer>(std::move(made));
  give(out, std::move(held));
}

}  // namespace

DType checked_dtype(npusim_dtype dtype) {
  if (npusim_dtype_size(dtype) != 0) return static_cast<DType>(dtype);
  throw Error(ErrorCode::kInput, "there is no dtype " + std::to_string(dtype));
}

std::vector<int64_t> checked_shape(const int64_t* shape, size_t rank) {
  constexpr size_t kMostRank = 64;
  if (rank > kMostRank) {
    throw Error(ErrorCode::kInput, "a rank of " + std::to_string(rank) + " is absurd");
  }
  const auto extents = elements(shape, rank, "shape");
  return {extents.begin(), extents.end()};
}

std::optional<bool> copy_rule(npusim_copy copy) {
  if (copy == NPUSIM_COPY_IF_NEEDED) return std::nullopt;
  if (copy == NPUSIM_COPY_ALWAYS || copy == NPUSIM_COPY_NEVER) return copy == NPUSIM_COPY_ALWAYS;
  throw Error(ErrorCode::kInput, "there is no npusim_copy " + std::to_string(copy));
}

void write_dense(DeviceBuffer& buffer, std::span<const std::byte> from) {
  require_bytes(buffer, from.size());
  if (!buffer.writable) throw Error(ErrorCode::kInput, "the buffer is read only");
  if (buffer.shape == buffer.alloc_shape) return buffer.device->upload(*buffer.memory, 0, from);
  std::vector<std::byte> padded(static_cast<size_t>(buffer.memory->bytes()));
  for_rows(buffer, 0, 0, 0, [&](size_t to, size_t at, size_t bytes) {
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(at), bytes,
                padded.begin() + static_cast<ptrdiff_t>(to));
  });
  buffer.device->upload(*buffer.memory, 0, padded);
}

void read_dense(const DeviceBuffer& buffer, std::span<std::byte> to) {
  require_bytes(buffer, to.size());
  if (buffer.shape == buffer.alloc_shape) return buffer.device->download(to, *buffer.memory, 0);
  std::vector<std::byte> padded(static_cast<size_t>(buffer.memory->bytes()));
  buffer.device->download(padded, *buffer.memory, 0);
  for_rows(buffer, 0, 0, 0, [&](size_t from, size_t at, size_t bytes) {
    std::copy_n(padded.begin() + static_cast<ptrdiff_t>(from), bytes,
                to.begin() + static_cast<ptrdiff_t>(at));
  });
}

}  // namespace npusim::c_api

using namespace npusim;
using namespace npusim::c_api;

const char* npusim_dtype_name(npusim_dtype dtype) {
  // Literals of the runtime's, which end with NUL.
  return npusim_dtype_size(dtype) == 0 ? nullptr : dtype_name(static_cast<DType>(dtype)).data();
}

size_t npusim_dtype_size(npusim_dtype dtype) {
  const bool known = dtype >= NPUSIM_FLOAT32 && dtype <= NPUSIM_BOOL;
  return known ? static_cast<size_t>(dtype_size(static_cast<DType>(dtype))) : 0;
}

void npusim_buffer_free(npusim_buffer* buffer) {
  free_handle(buffer);
}

npusim_status npusim_buffer_allocate(npusim_device* device, npusim_dtype dtype,
                                     const int64_t* shape, size_t rank, npusim_buffer** buffer) {
  return guarded([&] {
    require(buffer, "buffer");
    give_buffer(buffer, allocate_buffer(object(device)->device, checked_dtype(dtype),
                                        checked_shape(shape, rank), std::nullopt, true));
  });
}

npusim_status npusim_buffer_for(npusim_executor* executor, size_t index, npusim_side side,
                                size_t tensor, const int64_t* sizes, size_t size_count,
                                npusim_buffer** buffer) {
  return guarded([&] {
    require(buffer, "buffer");
    const auto held = object(executor);
    const auto program = held->executor.prepare(index, elements(sizes, size_count, "sizes"));
    const bool sized = program.get() != &held->executor.program();
    const Method& method = program->methods[sized ? 0 : index];
    const std::vector<TensorSpec>& specs = specs_of(method, side);
    if (tensor >= specs.size()) throw Error(ErrorCode::kInput, "the method has no such tensor");
    const TensorSpec& spec = specs[tensor];
    give_buffer(buffer,
                allocate_buffer(held->device, spec.dtype, spec.shape, spec.alloc_shape, true));
  });
}

npusim_status npusim_buffer_from_host(npusim_device* device, const npusim_tensor* tensor,
                                      npusim_copy copy, npusim_release release, void* context,
                                      npusim_buffer** buffer) {
  return guarded([&] {
    std::shared_ptr<const void> owner = owner_of(release, context);
    require(buffer, "buffer");
    require(tensor, "tensor");
    const npusim_tensor given = read_struct(tensor, "npusim_tensor");
    const auto bytes = elements(static_cast<std::byte*>(given.data), given.bytes, "data");
    give_buffer(buffer, buffer_over_host(object(device)->device, checked_dtype(given.dtype),
                                         checked_shape(given.shape, given.rank), bytes,
                                         /*writable=*/true, std::move(owner), copy_rule(copy)));
  });
}

npusim_status npusim_buffer_at(npusim_device* device, npusim_dtype dtype, const int64_t* shape,
                               size_t rank, uint64_t address, npusim_release release, void* context,
                               npusim_buffer** buffer) {
  return guarded([&] {
    std::shared_ptr<const void> owner = owner_of(release, context);
    require(buffer, "buffer");
    if (address == 0) throw Error(ErrorCode::kInput, "address is 0");
    give_buffer(buffer, buffer_at(object(device)->device, checked_dtype(dtype),
                                  checked_shape(shape, rank), address, std::move(owner)));
  });
}

npusim_status npusim_buffer_from_dlpack(npusim_device* device, struct DLManagedTensor* tensor,
                                        npusim_copy copy, npusim_buffer** buffer) {
  return guarded([&] {
    require(buffer, "buffer");
    require(tensor, "tensor");
    auto* managed = reinterpret_cast<DlManagedTensor*>(tensor);
    const std::optional<bool> rule = copy_rule(copy);
    DeviceBuffer made = describe_dlpack(managed->tensor, object(device)->device);
    // The caller keeps the tensor until nothing can fail any more.
    auto taken = std::make_shared<bool>(false);
    const std::shared_ptr<const void> owner(managed, [taken](const DlManagedTensor* given) {
      auto* back = const_cast<DlManagedTensor*>(given);
      if (*taken && back->deleter != nullptr) back->deleter(back);
    });
    place_dlpack(made, managed->tensor, owner, rule);
    give_buffer(buffer, std::move(made));
    *taken = true;
  });
}

npusim_status npusim_buffer_to_dlpack(npusim_buffer* handle, const int64_t* stream,
                                      struct DLManagedTensor** tensor) {
  return guarded([&] {
    const auto held = object(handle);
    require(tensor, "tensor");
    DeviceBuffer& buffer = *held->buffer;
    DlManagedTensor* lent = lend_dlpack(buffer);
    std::unique_ptr<DlManagedTensor, void (*)(DlManagedTensor*)> back(lent, lent->deleter);
    if (lends_host_memory(*buffer.device)) {
      show_to_host(buffer);
    } else {
      hand_over(*buffer.device, stream == nullptr ? std::nullopt : std::optional(*stream));
    }
    *tensor = reinterpret_cast<struct DLManagedTensor*>(back.release());
  });
}

npusim_status npusim_buffer_get_info(npusim_buffer* handle, npusim_buffer_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    const DeviceBuffer& buffer = *held->buffer;
    const bool has_address = buffer.device->addressing() != Addressing::kHandles;
    write_struct(info,
                 {.struct_size = 0,
                  .shape = buffer.shape.data(),
                  .rank = buffer.shape.size(),
                  .bytes = static_cast<size_t>(dense_bytes(buffer.shape, buffer.dtype)),
                  .address = has_address ? buffer.memory->range().offset : 0,
                  .dtype = static_cast<npusim_dtype>(buffer.dtype),
                  .writable = buffer.writable,
                  .borrowed = buffer.borrowed,
                  .padded = buffer.shape != buffer.alloc_shape},
                 "npusim_buffer_info");
  });
}

npusim_status npusim_buffer_write(npusim_buffer* handle, const void* data, size_t bytes) {
  return guarded([&] {
    const auto held = object(handle);
    write_dense(*held->buffer, elements(static_cast<const std::byte*>(data), bytes, "data"));
  });
}

npusim_status npusim_buffer_read(npusim_buffer* handle, void* data, size_t bytes) {
  return guarded([&] {
    const auto held = object(handle);
    read_dense(*held->buffer, elements(static_cast<std::byte*>(data), bytes, "data"));
  });
}

npusim_status npusim_buffer_copy(npusim_buffer* to, npusim_buffer* from) {
  return guarded([&] { copy_buffer(*object(to)->buffer, *object(from)->buffer); });
}

npusim_status npusim_buffer_map(npusim_buffer* handle, void** data) {
  return guarded([&] {
    const auto held = object(handle);
    require(data, "data");
    DeviceBuffer& buffer = *held->buffer;
    if (buffer.memory->host() == nullptr && buffer.memory->bytes() > 0) {
      throw Error(ErrorCode::kDevice, "the host cannot read memory of the device " +
                                          std::string(buffer.device->name()) +
                                          "; use npusim_buffer_read");
    }
    if (!buffer.device->synchronous()) show_to_host(buffer);
    *data = buffer.memory->host();
  });
}
