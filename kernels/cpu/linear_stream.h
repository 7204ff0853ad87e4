// Dot products of a few rows of x with rows of W that come from memory and are needed once: in the
// order of dot_tile, a sum in registers over each kSumK of K.
//
// Short rows are taken one after the other, which is the order memory is fastest in, and the row
// below is fetched meanwhile. Long ones leave no room for x in the nearest cache: four of them
// share each load of x, and each is fetched a little ahead of its use.
//
// More rows of x than a tile takes are several tiles: all but the first find the block of W in the
// nearest cache, and each fetches its share of the rows below.
#pragma once

#include "kernels/cpu/linear_tile.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kShortRow = 2048;  // elements
inline constexpr int64_t kLongAhead = 512;
inline constexpr int64_t kStreamRows = 3 * kDotTileRows;  // of x, at most: four tiles gain nothing

template <typename X, typename W, int... R>
inline void stream_tile(int64_t rows, DotTile<X, W> tile, std::integer_sequence<int, R...>) {
  static constexpr void (*kTiles[])(const DotTile<X, W>&) = {
      dot_tile<R + 1, kTileColumns, X, W>...};
  const int64_t tiles = (rows + kDotTileRows - 1) / kDotTileRows,
                height = (rows + tiles - 1) / tiles;
  const bool is_short = tile.k <= kShortRow;
  const int64_t share = is_short ? tile.k * kTileColumns / tiles : 0;  // that a tile fetches
  for (int c = 0; c < kTileColumns; ++c)
    tile.soon[c] = is_short ? tile.soon[0] + c * 64 / int64_t{sizeof(W)} : tile.w[c] + kLongAhead;
  if (is_short) tile.soon_step = (kTileColumns + tiles - 1) / tiles;
  for (int64_t left = tile.k;; left -= kSumK) {
    tile.k = std::min(left, kSumK);
    kTiles[std::min(rows, height) - 1](tile);
    DotTile<X, W> below = tile;
    for (int64_t row = height; row < rows; row += height) {
      below.x += height * tile.x_row;
      below.sums += height * tile.sums_row;
      for (int c = 0; c < kTileColumns; ++c) below.soon[c] += share;
      kTiles[std::min(rows - row, height) - 1](below);
    }
    if (left <= kSumK) return;
    tile.add = true;
    tile.x += kSumK;
    for (int c = 0; c < kTileColumns; ++c) {
      tile.w[c] += kSumK;
      tile.soon[c] += kSumK * tile.soon_step;
    }
  }
}

// `rows` in [1, kStreamRows]; tile.soon are the rows of the group to come.
template <typename X, typename W>
inline void stream_tile(int64_t rows, const DotTile<X, W>& tile) {
  stream_tile(rows, tile, std::make_integer_sequence<int, kDotTileRows>{});
}

}  // namespace npusim::cpu::NPUSIM_ISA
