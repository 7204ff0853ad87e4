// Products of a few rows with a matrix whose rows run along K: y[r][j] = Σ_k a[r][k]·b[j][k].
// Bound by the reading of b, which is read once, where it lies.
#pragma once

#include "kernels/cpu/to_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kDotRows = 8;  // the most rows of a

struct DotRows {
  const float* a;  // rows padded with zeros to whole vectors
  int64_t a_row;
  int64_t b_row;
  int64_t k;
  float* y;  // rows padded to whole vectors
  int64_t y_row;
  bool add;  // y += …; else y = …
};

// The next kLanes columns of y, or `left` if those are fewer; what the lanes beyond receive is 0.
template <int R, typename T>
inline void dot_lanes(const DotRows& p, const T* b, int64_t left, float* y) {
  constexpr int64_t kAhead = 8;  // rows may be pages apart, which hardware does not prefetch
  Vec sums[R][kLanes] = {};
  for (int64_t j = 0; j < std::min<int64_t>(kLanes, left); ++j) {
    const T* row = b + j * p.b_row;
    const T* ahead = b + std::min(j + kAhead, left - 1) * p.b_row;
    Vec acc[R] = {};
    for (int64_t k = 0; k < p.k; k += kLanes) {
      __builtin_prefetch(ahead + k);
      const Vec x = load_lanes(row + k, p.k - k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r] += x * load(p.a + r * p.a_row + k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r][j] = acc[r];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec before = p.add ? load(y + r * p.y_row) : Vec{};
    store(y + r * p.y_row, before + sum_each(sums[r]));
  }
}

template <int R, typename T>
void dot_rows(const DotRows& p, const T* b, int64_t columns) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    dot_lanes<R>(p, b + j * p.b_row, columns - j, p.y + j);
  }
}

template <typename T>
void dot_rows(const DotRows& p, int64_t rows, const T* b, int64_t columns) {
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
