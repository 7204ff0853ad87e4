// Convolutions to few channels (maps of depth, waves, colours): a tile of sums would leave most of
// its panel empty, so sums are dot products along K, a vector of a pixel's channels at a time. An
// element's lanes are added pairwise in the end, in an order that follows from K alone.
#pragma once

#include "kernels/cpu/igemm.h"
#include "kernels/cpu/transpose.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kMostDots = 4;     // columns
inline constexpr int64_t kSummedRows = 16;  // whose sums are added up together
inline constexpr int64_t kDotStep = std::is_same_v<Element, float> ? kLanes : kPairLanes;

// Elements of a run of weights, with zeros after it to whole vectors.
constexpr int64_t padded_run(int64_t run) {
  return (run + kDotStep - 1) / kDotStep * kDotStep;
}

// Whether dot products take less than tiles do, by the instructions of a row.
inline bool takes_dots(int64_t columns, int64_t taps, int64_t run) {
  if (kLanes < 8 || columns < 1 || columns > kMostDots) return false;
  const double tile = static_cast<double>(taps) * static_cast<double>(run) * kPanel / kDotStep;
  const double vectors = static_cast<double>(padded_run(run) / kDotStep);
  const auto n = static_cast<double>(columns), pointers = static_cast<double>(2 * taps);
  return 1.5 * (n * (static_cast<double>(taps) * vectors + 4) + pointers) < tile;
}

// Elements of scratch for the weights, and floats for sums, of `rows` rows.
inline int64_t dot_elements(int64_t columns, int64_t taps, int64_t run) {
  return columns * taps * padded_run(run);
}
inline int64_t dot_sums(int64_t columns, int64_t rows) {
  return columns * (rows + kSummedRows) + kLanes;
}

// to[column][tap][padded run] = the columns of a panel.
inline void unpack_columns(const Rows& a, const Panels& b, int64_t columns, Element* to) {
  with_operand_type(b.dtype, [&]<typename B>(B) {
    for (int64_t n = 0; n < columns; ++n) {
      for (int64_t t = 0; t < a.taps; ++t, to += padded_run(a.run)) {
        const B* from = static_cast<const B*>(b.data) + a.tap_k[t] * kPanel + n;
        for (int64_t i = 0; i < a.run; ++i) to[i] = as_element(from[i * kPanel]);
        std::fill(to + a.run, to + padded_run(a.run), Element{});
      }
    }
  });
}

// A vector of a run, all of it or its first n elements, and products of two added to sums.
inline Vec dot_operand(const float* p) {
  return load(p);
}
inline Vec dot_operand(const float* p, int64_t n) {
  return load_part(p, n);
}
inline Vec dot(Vec acc, Vec a, Vec b) {
  return acc + a * b;
}
#ifdef NPUSIM_BASE_ISA
inline BVec dot_operand(const bfloat16* p) {
  return load_pairs(p);
}
inline BVec dot_operand(const bfloat16* p, int64_t n) {
  return load_pairs_part(p, n);
}
inline Vec dot(Vec acc, BVec a, BVec b) {
  return dot_pairs(acc, a, b);
}
#endif

// Lanes of R rows by N columns, rows that are not there like the last one.
template <int R, int N>
[[gnu::noinline]] void add_dots(const Rows& a, int64_t row, const Element* w, Vec* lanes) {
  Vec acc[R][N] = {};
  const int64_t padded = padded_run(a.run), column = a.taps * padded, whole = a.run / kDotStep;
  const int64_t rest = a.run - whole * kDotStep;
  int64_t at[R];
  for (int r = 0; r < R; ++r) at[r] = std::min(row + r, a.count - 1);
  for (int64_t t = 0; t < a.taps; ++t, w += padded) {
    const Element* x[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) x[r] = a.at[t * a.stride + at[r]];
    const auto add = [&](int64_t i, auto... part) __attribute__((always_inline)) {
      decltype(dot_operand(w)) by[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) by[n] = dot_operand(w + n * column + i);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const auto pixel = dot_operand(x[r] + i, part...);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) acc[r][n] = dot(acc[r][n], pixel, by[n]);
      }
    };
    for (int64_t i = 0; i < whole; ++i) add(i * kDotStep);
    if (rest > 0) add(whole * kDotStep, rest);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) lanes[r * N + n] = acc[r][n];
  }
}

// sums[i] = the sum of lanes[i], of kLanes vectors.
[[gnu::noinline]] inline void sum_lanes_of(const Vec* lanes, float* sums) {
  Vec some[kLanes];
  for (int i = 0; i < kLanes; ++i) some[i] = lanes[i];
  store(sums, sum_each(some));
}

// sums[row][N] of all rows, and as many more as make whole vectors.
template <int N>
[[gnu::noinline]] void sum_dots(const Rows& a, const Element* w, float* sums) {
  constexpr int kTogether = 4;
  Vec lanes[kSummedRows * N];
  for (int64_t row = 0; row < a.count; row += kSummedRows) {
    for (int64_t r = 0; r < kSummedRows; r += kTogether) {
      add_dots<kTogether, N>(a, row + r, w, lanes + r * N);
    }
#pragma GCC unroll 1
    for (int64_t i = 0; i < kSummedRows * N; i += kLanes, sums += kLanes) {
      sum_lanes_of(lanes + i, sums);
    }
  }
}

// y from sums[row][columns], which it overwrites. Where there is more than a bias and an activation
// that is finish()'s to do.
inline void finish_dots(const Output& out, int64_t rows, int64_t columns, float* sums) {
  if (out.residual_mode != kNoResidual || out.more > 0) {
    return finish(out, 0, rows, 0, columns, sums, columns);
  }
  const int64_t count = rows * columns;
  for (int64_t i = 0; out.bias && i < count; i += columns) {
    for (int64_t n = 0; n < columns; ++n) sums[i + n] += out.bias[n];
  }
  activate(out, sums, (count + kLanes - 1) / kLanes * kLanes);
  bool dense = true;  // whether rows of y follow each other
  for (int64_t r = 1; r < rows; ++r) dense &= out.y_rows[r] - out.y_rows[r - 1] == columns;
  with_float_type(out.y_dtype, [&]<typename Y>(Y) {
    Y* y = static_cast<Y*>(out.y);
    int64_t r = 0, n = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t some = std::min<int64_t>(count - i, kLanes);
      if (dense && some == kLanes) {
        store(y + out.y_rows[0] + i, load(sums + i));
        continue;
      }
      Y rounded[kLanes];
      store(rounded, load(sums + i));
      for (int64_t lane = 0; lane < some; ++lane) {
        if (dense) {
          y[out.y_rows[0] + i + lane] = rounded[lane];
          continue;
        }
        y[out.y_rows[r] + n] = rounded[lane];
        if (++n == columns) n = 0, ++r;
      }
    }
  });
}

// out = finish(A · B) for the `columns` columns of a panel, whose weights are unpacked in w.
inline void multiply_by_dots(const Rows& a, const Element* w, int64_t columns, const Output& out,
                             float* sums) {
  if constexpr (kLanes < 8) return;  // a panel of four vectors is for tiles
  constexpr decltype(&sum_dots<1>) kCounts[kMostDots] = {sum_dots<1>, sum_dots<2>, sum_dots<3>,
                                                         sum_dots<4>};
  kCounts[columns - 1](a, w, sums);
  finish_dots(out, a.count, columns, sums);
}

}  // namespace npusim::cpu::NPUSIM_ISA
