// A product of NPUSIM_FEW rows of x: each SIMD group streams the rows of W that NPUSIM_EACH columns
// of y take, its lanes four elements at a time, and adds up their sums. The `Source` is a tile's
// (tile.h), with a_row, a_four, w_row and b_four over float, and how many columns there are. Where
// NPUSIM_NORM says so the rows are normalised on the way: a lane adds up the squares of what it
// reads, and the sums are multiplied by one over the root of their mean.
#pragma once
#include "kernels/metal/matmul/sums.h"

namespace npusim {

enum : int {
  kFew = NPUSIM_FEW,
  kEach = NPUSIM_EACH,
  kGroups = 8  // SIMD groups
};

// The sum over the lanes of a SIMD group, for its first lane; all threads have to call it.
#if NPUSIM_HAS_SIMDGROUP_MATRIX
#define NPUSIM_LANES_MEMORY
#define NPUSIM_LANES nullptr
inline float sum_of_lanes(float value, threadgroup float*, int) {
  return metal::simd_sum(value);
}
#else
#define NPUSIM_LANES_MEMORY threadgroup float lanes[npusim::kGroups * 32];
#define NPUSIM_LANES lanes
inline float sum_of_lanes(float value, threadgroup float* lanes, int t) {
  lanes[t] = value;
  for (int far = 16; far > 0; far /= 2) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (t % 32 < far) lanes[t] += lanes[t + far];
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  value = lanes[t / 32 * 32];
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  return value;
}
#endif

template <typename Source, typename Output>
inline void run_few_rows(thread const Source& source, thread const Output& output, int64_t group,
                         int64_t begin, int64_t end, int t, threadgroup float* lanes) {
  const int64_t first = (group * kGroups + t / 32) * kEach;
  typename Source::Column w[kEach][kParts];
  typename Source::Row x[kFew];
  float sums[kEach][kParts][kFew];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t column = first + i < Source::kColumns ? first + i : Source::kColumns - 1;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      w[i][part] = source.w_row(column + part * Source::kColumns);
#pragma unroll
      for (int m = 0; m < kFew; ++m) sums[i][part][m] = 0.0f;
    }
  }
#pragma unroll
  for (int m = 0; m < kFew; ++m) x[m] = source.a_row(m);
#if NPUSIM_NORM
  float squares[kFew] = {};
#endif
  for (int64_t k = begin + t % 32 * 4; k < end; k += 128) {
    float of_x[kFew][4], of_w[4];
#pragma unroll
    for (int m = 0; m < kFew; ++m) source.a_four(x[m], k, of_x[m]);
#if NPUSIM_NORM
    float of_norm[4];
    source.norm_four(k, of_norm);
#pragma unroll
    for (int m = 0; m < kFew; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        squares[m] += of_x[m][e] * of_x[m][e];
        of_x[m][e] *= of_norm[e];
      }
    }
#endif
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        source.b_four(w[i][part], k, of_w);
#pragma unroll
        for (int m = 0; m < kFew; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][part][m] += of_x[m][e] * of_w[e];
        }
      }
    }
  }
#if NPUSIM_NORM
  float factors[kFew];
#pragma unroll
  for (int m = 0; m < kFew; ++m) {
    const float mean = sum_of_lanes(squares[m], lanes, t) / static_cast<float>(params.k);
    factors[m] = params.k == 0 ? 1.0f : scalar::rsqrt(mean + params.norm_eps);
  }
#endif
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int m = 0; m < kFew; ++m) {
      float whole[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        whole[part] = sum_of_lanes(sums[i][part][m], lanes, t);
#if NPUSIM_NORM
        whole[part] *= factors[m];
#endif
      }
      if (t % 32 == 0) output.put_at(m, first + i, whole[0], whole[kParts - 1]);
    }
  }
}

}  // namespace npusim
