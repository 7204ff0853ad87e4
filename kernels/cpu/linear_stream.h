// Dot products of a few rows of x with rows of W that come from memory and are needed once: in the
// order of dot_tile, a sum in registers over each kSumK of K.
//
// Short rows are taken one after the other, which is the order memory is fastest in, and the row
// below is fetched meanwhile. Long ones leave no room for x in the nearest cache: four of them
// share each load of x, and each is fetched a little ahead of its use.
#pragma once

#include "kernels/cpu/linear_tile.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kShortRow = 2048;  // elements
inline constexpr int64_t kLongAhead = 512;

template <typename X, typename W, int... R>
inline void stream_tile(int64_t rows, DotTile<X, W> tile, std::integer_sequence<int, R...>) {
  static constexpr void (*kTiles[])(const DotTile<X, W>&) = {
      dot_tile<R + 1, kTileColumns, X, W>...};
  if (tile.k > kShortRow) {
    for (int c = 0; c < kTileColumns; ++c) tile.soon[c] = tile.w[c] + kLongAhead;
  } else {
    for (int c = 1; c < kTileColumns; ++c)
      tile.soon[c] = tile.soon[0] + c * 64 / int64_t{sizeof(W)};
    tile.soon_step = kTileColumns;
  }
  for (int64_t left = tile.k;;) {
    tile.k = std::min(left, kSumK);
    kTiles[rows - 1](tile);
    if ((left -= kSumK) <= 0) return;
    tile.add = true;
    tile.x += kSumK;
    for (int c = 0; c < kTileColumns; ++c) {
      tile.w[c] += kSumK;
      tile.soon[c] += kSumK * tile.soon_step;
    }
  }
}

// `rows` in [1, kDotTileRows]; tile.soon are the rows of the group to come.
template <typename X, typename W>
inline void stream_tile(int64_t rows, const DotTile<X, W>& tile) {
  stream_tile(rows, tile, std::make_integer_sequence<int, kDotTileRows>{});
}

}  // namespace npusim::cpu::NPUSIM_ISA
