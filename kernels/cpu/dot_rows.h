// Dot products of a few rows with a matrix whose rows run along K: y[r][j] = Σ_k a[r][k]·b[j][k].
// Bound by the reading of b, which is read once, where it lies.
#pragma once

#include "kernels/cpu/to_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kDotRows = 8;  // the most rows of a

// A: float, or bfloat16 where both sides multiply in pairs (dot_pairs of simd.h).
template <typename A>
struct DotRowsOf {
  const A* a;  // rows padded with zeros to whole vectors
  int64_t a_row;
  int64_t b_row;
  int64_t k;
  float* y;  // rows padded to whole vectors
  int64_t y_row;
  bool add;            // y += …; else y = …
  int64_t b_rows = 0;  // rows of b worth prefetching, if more than are multiplied
};
using DotRows = DotRowsOf<float>;

// What a step along K takes of a row, and how two rows' steps are multiplied.
template <typename A, typename T>
struct DotStep {
  using Type = Vec;
  static constexpr int64_t kSize = kLanes;
  static Vec from(const T* p, int64_t n) { return load_lanes(p, n); }
  static Vec from_a(const A* p) { return load(p); }
  static Vec add(Vec acc, Vec a, Vec b) { return acc + a * b; }
};
template <>
struct DotStep<bfloat16, bfloat16> {
  using Type = BVec;
  static constexpr int64_t kSize = kPairLanes;
  static BVec from(const bfloat16* p, int64_t n) { return load_pair_lanes(p, n); }
  static BVec from_a(const bfloat16* p) { return load_pairs(p); }
  static Vec add(Vec acc, BVec a, BVec b) { return dot_pairs(acc, a, b); }
};

// Columns of y whose sums stay in registers beside those of R rows: a power of two, so that their
// lanes are summed by rounds of their own.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kDotSums = 24;
#else
inline constexpr int kDotSums = 12;
#endif
inline constexpr int64_t kWideDotRows = kDotSums / 2;  // the most that share rows of b in pairs
constexpr int dot_columns(int rows) {
  return 4 * rows <= kDotSums ? 4 : 2 * rows <= kDotSums ? 2 : 1;
}

// R rows of a by C rows of b, the last of which repeats if fewer are `left`. Prefetches as many
// rows further on into the second level, while some are left: hardware stops at pages.
template <int R, int C, typename A, typename T>
inline void dot_tile(const DotRowsOf<A>& p, const T* b, int64_t left, Vec* const (&sums)[R]) {
  using Step = DotStep<A, T>;
  constexpr int64_t kAheadBytes = 32768;
  const int64_t further = std::max<int64_t>(8, kAheadBytes / (p.k * int64_t{sizeof(T)} + 1));
  const T *row[C], *ahead[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    row[c] = b + std::min<int64_t>(c, left - 1) * p.b_row;
    ahead[c] = b + std::min<int64_t>(c + further, left - 1) * p.b_row;
  }
  Vec acc[R][C] = {};
  for (int64_t k = 0; k < p.k; k += Step::kSize) {
    typename Step::Type x[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      __builtin_prefetch(ahead[c] + k, 0, 2);
      x[c] = Step::from(row[c] + k, p.k - k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename Step::Type a = Step::from_a(p.a + r * p.a_row + k);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = Step::add(acc[r][c], a, x[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) *sums[r] = sum_rounds<1>(acc[r]);
}

// The next kLanes columns of y, or so many as are left of them.
template <int R, typename A, typename T>
inline void dot_lanes(const DotRowsOf<A>& p, const T* b, int64_t columns, int64_t left, float* y) {
  constexpr int C = dot_columns(R) < kLanes ? dot_columns(R) : kLanes;
  Vec sums[R][kLanes / C];
  for (int64_t g = 0; g < kLanes / C; ++g) {
    if (g * C >= columns) {
      for (int r = 0; r < R; ++r) sums[r][g] = Vec{};
      continue;
    }
    Vec* to[R];
    for (int r = 0; r < R; ++r) to[r] = &sums[r][g];
    dot_tile<R, C>(p, b + g * C * p.b_row, left - g * C, to);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec before = p.add ? load(y + r * p.y_row) : Vec{};
    store(y + r * p.y_row, before + sum_rounds<C>(sums[r]));
  }
}

template <int R, typename A, typename T>
void dot_rows(const DotRowsOf<A>& p, const T* b, int64_t columns) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    dot_lanes<R>(p, b + j * p.b_row, columns - j, std::max(columns, p.b_rows) - j, p.y + j);
  }
}

template <typename A, typename T>
void dot_rows(const DotRowsOf<A>& p, int64_t rows, const T* b, int64_t columns) {
  switch (rows) {
    case 1:
      return dot_rows<1>(p, b, columns);
    case 2:
      return dot_rows<2>(p, b, columns);
    case 3:
      return dot_rows<3>(p, b, columns);
    case 4:
      return dot_rows<4>(p, b, columns);
    case 5:
      return dot_rows<5>(p, b, columns);
    case 6:
      return dot_rows<6>(p, b, columns);
    case 7:
      return dot_rows<7>(p, b, columns);
    default:
      return dot_rows<kDotRows>(p, b, columns);
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
