// Depthwise convolutions of bytes, lane by lane: what a tap multiplies is made once for some rows,
// whose sums stay in registers.
#pragma once

#include <utility>

#include "kernels/cpu/int8_panels.h"
#include "kernels/cpu/int8_tile.h"

namespace npusim::cpu::NPUSIM_ISA {

// Some columns of a depthwise convolution.
struct DepthwiseTile {
  const uint8_t* const* at;  // [taps][stride]: the pixels of each row
  int64_t stride, taps;
  int64_t column, n;  // the first column, and how many are there from it on
  const int8_t* w;    // [taps][step], from the first column
  int64_t step;
  const int32_t *offset, *w_zero;  // of each column, from the first one
  uint8_t flip;                    // makes signed pixels unsigned
  int32_t* sums;                   // [rows][kSumsStride]
};

// kLanes sums of `Rows` rows. Sums wrap, which unsigned lanes do by definition.
template <int Rows, bool Whole>
void sum_depthwise(const DepthwiseTile& tile) {
  UVec sums[Rows];
  for (auto& sum : sums) sum = reinterpret_cast<UVec>(load(tile.offset));
  const IVec zero = load(tile.w_zero), flip = IVec{} + tile.flip;
  for (int64_t t = 0; t < tile.taps; ++t) {
    const IVec w = load_bytes(tile.w + t * tile.step) - zero;
    const uint8_t* const* at = tile.at + t * tile.stride;
    for (int r = 0; r < Rows; ++r) {
      const uint8_t* x = at[r] + tile.column;
      const IVec pixel = (Whole ? load_bytes(x) : load_bytes_part(x, tile.n)) ^ flip;
      sums[r] += reinterpret_cast<UVec>(pixel * w);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    store(tile.sums + r * kSumsStride, reinterpret_cast<IVec>(sums[r]));
  }
}

using DepthwiseFunction = void (*)(const DepthwiseTile&);

template <int... Rows>
DepthwiseFunction depthwise_function(int64_t rows, bool whole,
                                     std::integer_sequence<int, Rows...>) {
  static constexpr DepthwiseFunction kWhole[] = {sum_depthwise<Rows + 1, true>...};
  static constexpr DepthwiseFunction kPart[] = {sum_depthwise<Rows + 1, false>...};
  return whole ? kWhole[rows - 1] : kPart[rows - 1];
}

// What sums 1 to kMaxTileRows rows, of all lanes or of those that are there.
inline DepthwiseFunction depthwise_function(int64_t rows, bool whole) {
  return depthwise_function(rows, whole, std::make_integer_sequence<int, kMaxTileRows>());
}

}  // namespace npusim::cpu::NPUSIM_ISA
