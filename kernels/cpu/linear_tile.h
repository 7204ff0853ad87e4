// Dot products of a tile of x rows with a few rows of W, both lying along K where they are. The
// sums of all pairs stay in registers over K and are added up across lanes once at its end.
#pragma once

#include <algorithm>

#include "kernels/cpu/transpose.h"

namespace npusim::cpu::NPUSIM_ISA {

// The largest tile: its sums, its rows of W and one row of x fill the register file.
inline constexpr int kTileColumns = 4;
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kDotTileRows = 6;
#elif defined(__AVX2__)
inline constexpr int kDotTileRows = 3;
#else
inline constexpr int kDotTileRows = 2;
#endif

// Elements of K over which a sum stays in registers. Each element of y is one sum over every such
// block, lane by lane, and the blocks' sums in their order: whatever else is computed beside it.
inline constexpr int64_t kSumK = 1536;

// Rows of x that share a pass over some rows of W, at most: a chunk of 128 tokens is one block.
inline constexpr int64_t kMostRows = 132;

// The block that `rows` are best cut into: blocks as equal as whole tiles allow.
constexpr int64_t row_block_of(int64_t rows) {
  if (rows <= kMostRows) return std::max<int64_t>(rows, 1);
  const int64_t blocks = (rows + kMostRows - 1) / kMostRows;
  const int64_t tiles = (rows + blocks * kDotTileRows - 1) / (blocks * kDotTileRows);
  return tiles * kDotTileRows;
}

// How elements of X and W multiply: widened to float, or as pairs by the dot instruction.
template <typename X, typename W>
struct Dots {
  static constexpr int64_t kStep = kLanes;
  using Lanes = Vec;
  template <typename T>
  static Vec whole(const T* p) {
    return load(p);
  }
  template <typename T>
  static Vec part(const T* p, int64_t n) {
    return load_part(p, n);
  }
  static Vec add(Vec sum, Vec x, Vec w) { return sum + x * w; }
};
template <>
struct Dots<bfloat16, bfloat16> {
  static constexpr int64_t kStep = kPairLanes;
  using Lanes = BVec;
  static BVec whole(const bfloat16* p) { return load_pairs(p); }
  static BVec part(const bfloat16* p, int64_t n) { return load_pairs_part(p, n); }
  static Vec add(Vec sum, BVec x, BVec w) { return dot_pairs(sum, x, w); }
};

template <typename X, typename W>
struct DotTile {
  const X* x;
  int64_t x_row;
  const W* w[kTileColumns];
  const W* soon[kTileColumns];  // what will be multiplied later: to be brought near …
  int64_t soon_step = 1;        // … so many elements further on for each of K
  int64_t k;
  float* sums;  // [row][kTileColumns], rows `sums_row` apart
  int64_t sums_row;
  bool add;  // sums += …; else sums = …
};

// Adds up the lanes of N vectors: afterwards the first N lanes of v, laid end to end, are the sums.
template <int N, int S = 1>
inline void sum_lanes(Vec* v) {
  if constexpr (S < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < (N + 1) / 2; ++i) {
      Vec a = v[2 * i], b = 2 * i + 1 < N ? v[2 * i + 1] : a;
      exchange<S>(a, b, std::make_integer_sequence<int, kLanes>{});
      v[i] = a + b;
    }
    sum_lanes<(N + 1) / 2, 2 * S>(v);
  }
}

// Stores the sums over lanes of acc[r * kTileColumns + c], or adds them to what is there.
template <int R, typename X, typename W>
inline void store_sums(Vec* acc, const DotTile<X, W>& tile) {
  constexpr int C = kTileColumns;
  using Quad = VectorOf<float, C>::unaligned;
  sum_lanes<R * C>(acc);
  float lanes[(R * C + kLanes - 1) / kLanes * kLanes];
#pragma GCC unroll 8
  for (int i = 0; i * kLanes < R * C; ++i) store(lanes + i * kLanes, acc[i]);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const auto& sums = *reinterpret_cast<const Quad*>(lanes + r * C);
    auto& to = *reinterpret_cast<Quad*>(tile.sums + r * tile.sums_row);
    to = tile.add ? to + sums : sums;
  }
}

// R rows of x by kTileColumns rows of W; fetches P of tile.soon meanwhile.
template <int R, int P, typename X, typename W>
[[gnu::noinline]] void dot_tile(const DotTile<X, W>& tile) {
  using D = Dots<X, W>;
  constexpr int C = kTileColumns;
  Vec acc[R * C] = {};
  const W *w0 = tile.w[0], *w1 = tile.w[1], *w2 = tile.w[2], *w3 = tile.w[3];
  const X* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = tile.x + r * tile.x_row;
  const auto step = [&](auto&& take, int64_t k) __attribute__((always_inline)) {
    const typename D::Lanes w[C] = {take(w0 + k), take(w1 + k), take(w2 + k), take(w3 + k)};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename D::Lanes lanes = take(x[r] + k);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r * C + c] = D::add(acc[r * C + c], lanes, w[c]);
    }
  };
  const W* soon[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) soon[p] = tile.soon[p];
  const auto fetch = [&](int64_t k) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) __builtin_prefetch(soon[p] + k * tile.soon_step, 0, 2);
  };
  const auto whole = [](const auto* p) __attribute__((always_inline)) { return D::whole(p); };
  int64_t k = 0;
  if constexpr (P > 1) {  // a line of each row at a time, asked for once
    constexpr int64_t kLine = std::max<int64_t>(64 / sizeof(W), D::kStep);
    for (; k + kLine <= tile.k; k += kLine) {
      fetch(k);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kLine; i += D::kStep) step(whole, k + i);
    }
  }
  for (; k + D::kStep <= tile.k; k += D::kStep) {
    fetch(k);
    step(whole, k);
  }
  if (k < tile.k) step([n = tile.k - k](const auto* p) { return D::part(p, n); }, k);
  store_sums<R>(acc, tile);
}

template <typename X, typename W, int... R>
inline void dot_tile(int64_t rows, const DotTile<X, W>& tile, std::integer_sequence<int, R...>) {
  static constexpr void (*kTiles[])(const DotTile<X, W>&) = {dot_tile<R + 1, 1, X, W>...};
  kTiles[rows - 1](tile);
}

// `rows` in [1, kDotTileRows].
template <typename X, typename W>
inline void dot_tile(int64_t rows, const DotTile<X, W>& tile) {
  dot_tile(rows, tile, std::make_integer_sequence<int, kDotTileRows>{});
}

}  // namespace npusim::cpu::NPUSIM_ISA
