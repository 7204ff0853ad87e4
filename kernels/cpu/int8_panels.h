// The layout of 8-bit weights that `pack_int8` writes and `conv_int8` reads. Columns of B lie in
// panels of 16, four rows of K next to each other: [groups][panels][quads][16][4] signed bytes,
// after them int32[groups][panels][16], each column's sum. A depthwise weight has four panels
// beside each other, [blocks][quads][64][4], K being its taps, with the same sums; within a block
// columns are in the order of depthwise_place(), and 32 or fewer are there twice. uint8 weights are
// stored less 128.
//
// Where pairs of 16 bits are multiplied (kMultipliesPairs), what is said to be [16][4] is
// [2][16][2]: the first two rows of K, then the other two, so that one instruction widens them.
#pragma once

#include "kernels/cpu/check.h"
#include "kernels/cpu/igemm.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kQuad = 4;
inline constexpr int64_t kBlockPanels = 4;  // of a depthwise weight
inline constexpr int64_t kBlock = kBlockPanels * kPanel;

inline bool is_byte(int32_t dtype) {
  return dtype == static_cast<int32_t>(abi::DType::kInt8) ||
         dtype == static_cast<int32_t>(abi::DType::kUint8);
}
inline bool is_signed_byte(int32_t dtype) {
  return dtype == static_cast<int32_t>(abi::DType::kInt8);
}
// What turns a stored byte into the other signedness, less or more 128.
inline constexpr uint8_t kFlip = 0x80;

// AVX2 has no exact dot product of bytes; pairs of 16 bits are the quickest that it has. Both
// operands are widened apart from the multiplying: rows of x once for all columns, weights once for
// the rows of a tile.
#if defined(__AVX2__) && !defined(__AVX512F__)
inline constexpr bool kMultipliesPairs = true;
#else
inline constexpr bool kMultipliesPairs = false;
#endif

// Where row j of a quad of a column of a panel lies.
constexpr int64_t quad_place(int64_t column, int64_t j) {
  if (kMultipliesPairs) return j / 2 * kPanel * 2 + column * 2 + j % 2;
  return column * kQuad + j;
}

// Where a column of a block of a depthwise weight lies in it. Vectors of 64 bytes are interleaved
// by runs of 16, so that the first quarter of each run comes first, then the second ones.
constexpr int64_t depthwise_place(int64_t column) {
  if (kLanes < kPanel) return column;
  return column % kPanel / kQuad * kPanel + column / kPanel * kQuad + column % kQuad;
}
// Where row j of a quad of it lies.
constexpr int64_t depthwise_place(int64_t column, int64_t j) {
  const int64_t place = depthwise_place(column);
  return place / kPanel * kPanel * kQuad + quad_place(place % kPanel, j);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// What 16 bytes of weights are multiplied as.
inline SVec widen_weights(const int8_t* p) {
  return (SVec)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#endif

struct Int8Panels {
  int64_t groups, columns, k;  // columns of a group
  bool depthwise;

  int64_t panels() const {
    const int64_t whole = depthwise ? kBlock : kPanel;
    return (columns + whole - 1) / whole * (whole / kPanel);
  }
  int64_t quads() const { return (k + kQuad - 1) / kQuad; }
  int64_t panel_bytes() const { return quads() * kPanel * kQuad; }
  int64_t group_bytes() const { return panels() * panel_bytes(); }
  int64_t sums_offset() const { return groups * group_bytes(); }
  int64_t sums_of(int64_t group) const { return group * panels() * kPanel; }

  // check() of an operand in this layout.
  const char* check(const KernelCheck& c, size_t operand) const {
    constexpr int64_t kLimit = int64_t{1} << 62;
    if (groups < 0 || columns < 0 || k < 0 || columns > kLimit || k > kLimit)
      return "a size is negative or too large";
    const int64_t codes[] = {groups, panels(), kPanel, quads() * kQuad};
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
