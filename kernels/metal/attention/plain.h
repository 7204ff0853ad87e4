// Attention of any sizes by barriers alone, for GPU families without SIMD-group matrices and heads
// too long for tiles. The NPUSIM_BLOCK threads pass over as many keys at a time, one each, then
// over as many columns of v.
#pragma once
#include "kernels/metal/attention/parts.h"

namespace npusim {

enum : int { kColumnsEach = kV <= NPUSIM_BLOCK ? 1 : kV <= 2 * NPUSIM_BLOCK ? 2 : 4 };

// The largest of all threads' values.
inline float largest_of(float value, threadgroup float* folded, int t) {
  folded[t] = value;
  for (int far = NPUSIM_BLOCK / 2; far > 0; far /= 2) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (t < far) folded[t] = larger(folded[t], folded[t + far]);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  return folded[0];
}

template <typename Rows>
inline void run_row(thread const Rows& rows, Part part, RowSums to, int row, int t,
                    threadgroup float* folded, threadgroup float* weights) {
  const int64_t begin = rows.begin(row) > part.begin ? rows.begin(row) : part.begin;
  const int64_t end = rows.end(row) < part.end ? rows.end(row) : part.end;
  for (int first = 0; first < kV; first += kColumnsEach * NPUSIM_BLOCK) {
    float row_max = kMasked, row_sum = 0.0f, sums[kColumnsEach] = {};
    for (int64_t tile = begin; tile < end; tile += NPUSIM_BLOCK) {
      float score = kMasked;
      if (tile + t < end) {
        float dot = 0.0f;
        for (int d = 0; d < kD; ++d) dot += rows.of_query(row, d) * rows.of_key(tile + t, d);
        score = rows.scored(dot, row, tile + t);
      }
      const float new_max = larger(row_max, largest_of(score, folded, t));
      const float factor = rescale(row_max, new_max);
      row_max = new_max;
      weights[t] = weight_of(score, row_max);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      row_sum *= factor;
      for (int i = 0; i < kColumnsEach; ++i) sums[i] *= factor;
      const int count = static_cast<int>(end - tile < NPUSIM_BLOCK ? end - tile : NPUSIM_BLOCK);
      for (int key = 0; key < count; ++key) {
        row_sum += weights[key];
        for (int i = 0; i < kColumnsEach; ++i) {
          const int column = first + i * NPUSIM_BLOCK + t;
          if (column < kV) sums[i] += weights[key] * rows.of_value(tile + key, column);
        }
      }
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    for (int i = 0; i < kColumnsEach; ++i) {
      const int column = first + i * NPUSIM_BLOCK + t;
      if (column < kV) to.put(rows, part, row, column, sums[i], row_max, row_sum);
    }
  }
}

}  // namespace npusim
