#include "cpp/cuda/tensor_map.h"

#include "cpp/cuda/memory.h"

namespace npusim::cuda {
namespace {

constexpr uintptr_t kAlignment = 16;
constexpr uint32_t kLine = 64;  // elements of a box's row: 128 bytes, which are swizzled
// Enumerators of CUtensorMapDataType, …Interleave, …Swizzle, …L2promotion and …FloatOOBfill.
constexpr int kUint16 = 1, kNotInterleaved = 0, kSwizzled128 = 3, kPromoted256 = 3, kZeros = 0;

}  // namespace

TensorMap encode_map(const Driver& driver, const Matrix& matrix, const std::byte* address) {
  TensorMap map;
  if (reinterpret_cast<uintptr_t>(address) % kAlignment != 0) return map;
  const uint64_t extents[2] = {static_cast<uint64_t>(matrix.columns),
                               static_cast<uint64_t>(matrix.rows)};
  const uint64_t strides[1] = {static_cast<uint64_t>(matrix.stride)};
  const uint32_t box[2] = {kLine, static_cast<uint32_t>(matrix.box)}, steps[2] = {1, 1};
  driver.check(driver.tensor_map_encode_tiled(
                   &map, kUint16, 2, reinterpret_cast<DeviceAddress>(address), extents, strides,
                   box, steps, kNotInterleaved, kSwizzled128, kPromoted256, kZeros),
               "describe a matrix to the device");
  return map;
}

}  // namespace npusim::cuda
