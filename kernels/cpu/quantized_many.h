// The linear of many rows of x with a quantized weight: some of its rows are decoded to numbers,
// and the tiles of linear_tile.h pass over these. int8 codes are numbers as they are, which
// bfloat16 holds exactly; their scales multiply the sums.
#pragma once

#include "kernels/cpu/linear_finish.h"
#include "kernels/cpu/linear_tile.h"
#include "kernels/cpu/quantized.h"
#include "kernels/cpu/storage.h"

namespace npusim::cpu::NPUSIM_ISA {

// bfloat16 holds a code exactly, so that the upper half of the float is all of it.
inline void store_code(bfloat16* to, Vec code) {
  using Halves = VectorOf<uint16_t, kLanes>;
  const auto halves = __builtin_convertvector(reinterpret_cast<UVec>(code) >> 16, Halves::type);
  *reinterpret_cast<Halves::unaligned*>(to) = halves;
}
inline void store_code(float* to, Vec code) {
  store(to, code);
}

// Codes [k, k + depth) of a row; `depth` is a multiple of kCodeBlock, as `k` is.
template <typename T>
inline void decode_int8(const QuantizedRow& w, int64_t k, int64_t depth, T* to) {
  using Bytes = VectorOf<int8_t, kLanes>;
  using Halves = VectorOf<int16_t, kLanes>;
  for (int64_t i = 0; i < depth; i += kLanes) {
    const auto codes = *reinterpret_cast<const Bytes::unaligned*>(w.codes + k + i);
    // In two steps: GCC 12 takes the lanes apart to widen bytes to floats in one.
    const auto wide = __builtin_convertvector(codes, Halves::type);
    store_code(to + i, __builtin_convertvector(__builtin_convertvector(wide, IVec), Vec));
  }
}

// Elements [k, k + depth) of a row, kLanes words of four codes at a time.
template <typename T>
inline void decode_int4(const QuantizedRow& w, bool zeros, int64_t group, int64_t k, int64_t depth,
                        T* to) {
  using Words = VectorOf<uint16_t, kLanes>;
  constexpr int64_t kPiece = std::min(8, kLanes);  // lanes that stay together
  const auto scale_of = [&](int64_t at) { return to_float(w.scales[at / group]); };
  const auto zero_of = [&](int64_t at) {
    return zeros ? kZeroStep * static_cast<float>(w.zeros[at / group]) : kSymmetricZero;
  };
  for (int64_t i = 0; i < depth / 4; i += kLanes) {
    const auto* from = reinterpret_cast<const uint16_t*>(w.codes) + k / 4 + i;
    const UVec words =
        __builtin_convertvector(*reinterpret_cast<const Words::unaligned*>(from), UVec);
    const int64_t first = i / 8 * kCodeRun, next = k + first + (kLanes > 8 ? kCodeRun : 0);
    const Vec scale = first_lanes(broadcast(scale_of(k + first)), 8, scale_of(next));
    const Vec zero = first_lanes(broadcast(zero_of(k + first)), 8, zero_of(next));
#pragma GCC unroll 4
    for (int nibble = 0; nibble < 4; ++nibble) {
      const IVec codes = reinterpret_cast<IVec>((words >> (4 * nibble)) & 15);
      T lanes[kLanes];
      store(lanes, (__builtin_convertvector(codes, Vec) - zero) * scale);
#pragma GCC unroll 2
      for (int64_t piece = 0; piece < kLanes / kPiece; ++piece) {
        T* at = to + first + piece * kCodeRun + 8 * nibble + i % 8;
        std::memcpy(at, lanes + piece * kPiece, kPiece * sizeof(T));
      }
    }
  }
}

// sums[r][c] of rows of x, from element k on, by `columns` decoded rows, `w_row` apart.
template <typename T>
inline void multiply_decoded(const T* x, int64_t x_row, int64_t rows, const T* w, int64_t w_row,
                             int64_t columns, int64_t depth, bool add, const CellSums& sums,
                             int64_t part) {
  for (int64_t row = 0; row < rows; row += kDotTileRows) {
    for (int64_t c = 0; c < columns; c += kTileColumns) {
      DotTile<T, T> tile{.x = x + row * x_row,
                         .x_row = x_row,
                         .w = {},
                         .soon = {},
                         .k = depth,
                         .sums = sums.at(part, row, c),
                         .sums_row = sums.stride(),
                         .add = add};
      for (int64_t i = 0; i < kTileColumns; ++i) {
        tile.w[i] = tile.soon[i] = w + std::min(c + i, columns - 1) * w_row;
      }
      dot_tile(std::min<int64_t>(kDotTileRows, rows - row), tile);
    }
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
