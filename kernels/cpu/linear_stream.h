// Dot products of a few rows of x with rows of W that come from memory and are needed once.
//
// Memory is fastest when it is asked for one run after another, well ahead. So rows of W are taken
// in groups, a group in blocks short enough for their part of x to stay in the nearest cache: a
// block of the first row, of the second, … Meanwhile what comes next is fetched: the row below, or
// the next block of a row that takes several.
#pragma once

#include "kernels/cpu/linear_tile.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kStreamBlock = 2048;  // elements of a row

// sums[r] += x[r] · w over `n` elements, n < kLanes only at the end of a row.
template <int R, int U, typename X, typename W>
inline void stream_block(const X* const (&x)[R], const W* w, int64_t n, const W* ahead,
                         Vec* const (&sums)[R]) {
  using D = Dots<X, W>;
  Vec acc[R][U] = {};
  int64_t k = 0;
  for (; k + U * D::kStep <= n; k += U * D::kStep) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const int64_t at = k + u * D::kStep;
      __builtin_prefetch(ahead + at, 0, 2);
      const auto lanes = D::whole(w + at);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][u] = D::add(acc[r][u], D::whole(x[r] + at), lanes);
    }
  }
  for (; k + D::kStep <= n; k += D::kStep) {
    const auto lanes = D::whole(w + k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][0] = D::add(acc[r][0], D::whole(x[r] + k), lanes);
  }
  if (k < n) {
    const auto lanes = D::part(w + k, n - k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][0] = D::add(acc[r][0], D::part(x[r] + k, n - k), lanes);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int u = 1; u < U; ++u) acc[r][0] += acc[r][u];
    *sums[r] += acc[r][0];
  }
}

// R rows of x by kTileColumns rows of W; tile.soon are the rows of the group to come.
template <int R, typename X, typename W>
[[gnu::noinline]] void stream_tile(const DotTile<X, W>& tile) {
  constexpr int kUnrolled = R <= 2 ? 4 : 2;  // sums of a row that do not wait for each other
  constexpr int64_t kStride = kUnrolled * Dots<X, W>::kStep;
  const int64_t blocks = (tile.k + kStreamBlock - 1) / kStreamBlock;
  const int64_t even = blocks ? (tile.k + blocks - 1) / blocks : 0;
  const int64_t block = (even + kStride - 1) / kStride * kStride;
  Vec sums[R * kTileColumns] = {};
  for (int64_t k = 0; k < tile.k; k += block) {
    const int64_t n = std::min(block, tile.k - k);
    const X* x[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) x[r] = tile.x + r * tile.x_row + k;
    for (int c = 0; c < kTileColumns; ++c) {
      const int later = blocks > 1 ? c : (c + 1) % kTileColumns;
      const W* ahead = tile.w[later] + (later > c ? k : k + n);
      if (later <= c && k + n >= tile.k) ahead = tile.soon[later];
      Vec* to[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) to[r] = &sums[r * kTileColumns + c];
      stream_block<R, kUnrolled>(x, tile.w[c] + k, n, ahead, to);
    }
  }
  store_sums<R>(sums, tile);
}

template <typename X, typename W, int... R>
inline void stream_tile(int64_t rows, const DotTile<X, W>& tile, std::integer_sequence<int, R...>) {
  static constexpr void (*kTiles[])(const DotTile<X, W>&) = {stream_tile<R + 1, X, W>...};
  kTiles[rows - 1](tile);
}

// `rows` in [1, kDotTileRows].
template <typename X, typename W>
inline void stream_tile(int64_t rows, const DotTile<X, W>& tile) {
  stream_tile(rows, tile, std::make_integer_sequence<int, kDotTileRows>{});
}

}  // namespace npusim::cpu::NPUSIM_ISA
