// The layout of 8-bit weights that `pack_int8` writes and `conv_int8` reads. Columns of B lie in
// panels of 16, four rows of K next to each other: [groups][panels][quads][16][4] signed bytes,
// after them int32[groups][panels][16], each column's sum. A depthwise weight is one byte a column
// and tap, [taps][panels][16], with the same sums. uint8 weights are stored less 128.
#pragma once

#include "kernels/cpu/check.h"
#include "kernels/cpu/igemm.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kQuad = 4;

inline bool is_byte(int32_t dtype) {
  return dtype == static_cast<int32_t>(abi::DType::kInt8) ||
         dtype == static_cast<int32_t>(abi::DType::kUint8);
}
inline bool is_signed_byte(int32_t dtype) {
  return dtype == static_cast<int32_t>(abi::DType::kInt8);
}
// What turns a stored byte into the other signedness, less or more 128.
inline constexpr uint8_t kFlip = 0x80;

struct Int8Panels {
  int64_t groups, columns, k;  // columns of a group
  bool depthwise;

  int64_t panels() const { return (columns + kPanel - 1) / kPanel; }
  int64_t quads() const { return (k + kQuad - 1) / kQuad; }
  // Bytes of a panel; of all panels where a tap's lie next to each other.
  int64_t panel_bytes() const { return quads() * kPanel * kQuad; }
  int64_t group_bytes() const {
    return depthwise ? k * panels() * kPanel : panels() * panel_bytes();
  }
  int64_t sums_offset() const { return groups * group_bytes(); }
  int64_t sums_of(int64_t group) const { return group * panels() * kPanel; }

  // check() of an operand in this layout.
  const char* check(const KernelCheck& c, size_t operand) const {
    constexpr int64_t kLimit = int64_t{1} << 62;
    if (groups < 0 || columns < 0 || k < 0 || columns > kLimit || k > kLimit)
      return "a size is negative or too large";
    const int64_t codes[] = {groups, panels(), kPanel, depthwise ? k : quads() * kQuad};
    const int64_t sums[] = {groups, panels(), kPanel, int64_t{sizeof(int32_t)}};
    int64_t total = 0;
    if (product(codes, 4) < 0 || product(sums, 4) < 0 ||
        __builtin_add_overflow(product(codes, 4), product(sums, 4), &total))
      return "a size is negative or too large";
    if (c.operand_before[operand] % int64_t{sizeof(int32_t)} != 0)
      return "an operand is not aligned to its dtype";
    return Region().dim(total, 1).reads(c, operand, 1);
  }
};

}  // namespace npusim::cpu::NPUSIM_ISA
