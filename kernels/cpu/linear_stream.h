// Dot products of a few rows of x with rows of W that come from memory and are needed once.
//
// Short rows are taken one after the other, which is the order memory is fastest in, and the row
// below is fetched meanwhile. Long ones leave no room for x in the nearest cache: four of them
// share each load of x, and each is fetched a little ahead of its use.
#pragma once

#include "kernels/cpu/linear_tile.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kShortRow = 2048;  // elements
inline constexpr int64_t kLongAhead = 512;

// sums[r] = x[r] · w over `n` elements, lane by lane.
template <int R, int U, typename X, typename W>
inline void stream_row(const X* const (&x)[R], const W* w, int64_t n, const W* ahead,
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
    *sums[r] = acc[r][0];
  }
}

// R rows of x by kTileColumns rows of W, one after the other; tile.soon are those to come.
template <int R, typename X, typename W>
[[gnu::noinline]] void stream_tile(const DotTile<X, W>& tile) {
  constexpr int kUnrolled = R <= 2 ? 4 : 2;  // sums of a row that do not wait for each other
  Vec sums[R * kTileColumns];
  const X* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = tile.x + r * tile.x_row;
  for (int c = 0; c < kTileColumns; ++c) {
    Vec* to[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) to[r] = &sums[r * kTileColumns + c];
    const W* below = c + 1 < kTileColumns ? tile.w[c + 1] : tile.soon[0];
    stream_row<R, kUnrolled>(x, tile.w[c], tile.k, below, to);
  }
  store_sums<R>(sums, tile);
}

template <typename X, typename W, int... R>
inline void stream_tile(int64_t rows, const DotTile<X, W>& tile, std::integer_sequence<int, R...>) {
  static constexpr void (*kShort[])(const DotTile<X, W>&) = {stream_tile<R + 1, X, W>...};
  static constexpr void (*kLong[])(const DotTile<X, W>&) = {dot_tile<R + 1, kTileColumns, X, W>...};
  (tile.k <= kShortRow ? kShort : kLong)[rows - 1](tile);
}

// `rows` in [1, kDotTileRows]; tile.soon are the rows of the group to come.
template <typename X, typename W>
inline void stream_tile(int64_t rows, DotTile<X, W> tile) {
  if (tile.k > kShortRow) {
    for (int c = 0; c < kTileColumns; ++c) tile.soon[c] = tile.w[c] + kLongAhead;
  }
  stream_tile(rows, tile, std::make_integer_sequence<int, kDotTileRows>{});
}

}  // namespace npusim::cpu::NPUSIM_ISA
