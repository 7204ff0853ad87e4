// Rows of x as int16, one scale a group of K: what the integer dot products of quantized_dot.h
// read. 15 bits and a sign: a group's sum of products with codes of 8 bits stays far within int32.
#pragma once

#include <algorithm>

#include "kernels/cpu/quantized.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/storage.h"
#include "kernels/cpu/transpose.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kStreamedRows = 16;  // the most rows that codes stream by

struct QuantizedRows {
  int16_t* codes;  // [rows][k]
  float* scales;   // [rows][groups]: of x, 0 in a group beyond K
  float* offsets;  // [rows][groups]: what a zero point times its scale multiplies: Σ x, as coded
  int16_t* natural;
  int64_t k, groups, group_stride;

  // Groups are padded so that whole vectors of scales may be loaded.
  QuantizedRows(const QuantizedLayout& layout, int64_t rows, Arena& arena)
      : k(layout.k), groups(layout.groups) {
    group_stride = (groups + kLanes - 1) / kLanes * kLanes;
    codes = arena.take<int16_t>(rows * k);
    scales = arena.take<float>(rows * group_stride);
    offsets = arena.take<float>(rows * group_stride);
    natural = arena.take<int16_t>(k);
  }
};

// Elements as quantized_dot.h meets them: for a vector of words of int4 codes, the elements that
// its lowest nibbles multiply, then those of the next nibbles, and so on.
inline void order_for_words(const int16_t* from, int64_t k, int16_t* to) {
  constexpr int kRuns = kPairLanes / 8;  // of 32 elements, in a vector of words
  struct Eight {
    int16_t lanes[8];
  };
  const auto* in = reinterpret_cast<const Eight*>(from);
  auto* out = reinterpret_cast<Eight*>(to);
  for (int64_t i = 0; i < k / 8; i += 4 * kRuns) {
    for (int run = 0; run < kRuns; ++run) {
      for (int nibble = 0; nibble < 4; ++nibble) {
        out[i + nibble * kRuns + run] = in[i + 4 * run + nibble];
      }
    }
  }
}

// One row. The scales of kLanes groups are found together, one a lane.
template <typename X>
void quantize_x(const X* x, int64_t columns, const QuantizedRows& rows, int16_t* codes,
                float* scales, float* offsets) {
  constexpr float kMost = 32767, kShift = 0x1.8p23F, kSmallest = 0x1p-100F;
  const int64_t group = rows.k / std::max<int64_t>(rows.groups, 1);
  const auto part = [&](int64_t at) {
    return at < columns ? load_lanes(x + at, columns - at) : Vec{};
  };
  for (int64_t g = 0; g < rows.groups; g += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, rows.groups - g);
    Vec square[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (g + i) * group;
      for (int64_t j = 0; j < group; j += kLanes) square[i] = maximum(square[i], abs(part(at + j)));
    }
    transpose(square);
    Vec most{};
    for (const Vec& v : square) most = maximum(most, v);
    const Vec inverse = most > kSmallest ? kMost / most : Vec{};
    store(scales + g, most / kMost);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (g + i) * group;
      const Vec factor = broadcast(inverse[i]);
      IVec total{};
      for (int64_t j = 0; j < group; j += kLanes) {
        const IVec code = difference(reinterpret_cast<IVec>(part(at + j) * factor + kShift),
                                     reinterpret_cast<IVec>(kShift + Vec{}));
        using Codes = VectorOf<int16_t, kLanes>;
        const auto narrow = __builtin_convertvector(code, Codes::type);
        *reinterpret_cast<Codes::unaligned*>(codes + at + j) = narrow;
        total = wrapping_sum(total, __builtin_convertvector(narrow, IVec));
      }
      square[i] = __builtin_convertvector(total, Vec);
    }
    store(offsets + g, sum_each(square));
  }
}

// Rows [row, row + count) of x.
template <typename X>
void quantize_rows(const X* x, int64_t ldx, int64_t columns, int64_t count, int32_t format,
                   const QuantizedRows& rows) {
  for (int64_t r = 0; r < count; ++r) {
    int16_t* codes = rows.codes + r * rows.k;
    float* offsets = rows.offsets + r * rows.group_stride;
    quantize_x(x + r * ldx, columns, rows, has_bytes(format) ? codes : rows.natural,
               rows.scales + r * rows.group_stride, offsets);
    if (has_bytes(format)) continue;
    order_for_words(rows.natural, rows.k, codes);
    const float step = format == kInt4 ? kSymmetricZero : kZeroStep;
    const float* scales = rows.scales + r * rows.group_stride;
    for (int64_t g = 0; g < rows.group_stride; ++g) offsets[g] *= step * scales[g];
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
