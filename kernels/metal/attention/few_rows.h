// Attention of few queries: a threadgroup has up to NPUSIM_ROWS rows of a key/value head, whose
// keys its eight SIMD groups take in turn, each read once for all rows; lanes have the columns.
// What each SIMD group has summed is combined in the order of the SIMD groups.
#pragma once
#include "kernels/metal/attention/parts.h"

namespace npusim {

enum : int {
  kSimdGroups = 8,
  kDEach = kD == 0 ? 1 : (kD + 31) / 32,
  kVEach = (kV + 31) / 32,
  kPartial = kVEach * 32  // floats of a row
};

template <typename Rows>
inline void run_few(thread const Rows& rows, Part part, RowSums sums, int first, int t,
                    threadgroup float* maxima, threadgroup float* totals,
                    threadgroup float* partial) {
  const int lane = t % 32, own = t / 32;
  float q[kEach][kDEach], of_row[kEach][kVEach], row_max[kEach], row_sum[kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const int row = first + r < kRows ? first + r : kRows - 1;
    row_max[r] = kMasked;
    row_sum[r] = 0.0f;
#pragma unroll
    for (int i = 0; i < kDEach; ++i) {
      q[r][i] = i * 32 + lane < kD ? rows.of_query(row, i * 32 + lane) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kVEach; ++i) of_row[r][i] = 0.0f;
  }
  for (int64_t key = part.begin + own; key < part.end; key += kSimdGroups) {
    float k[kDEach], v[kVEach];
#pragma unroll
    for (int i = 0; i < kDEach; ++i) {
      k[i] = i * 32 + lane < kD ? rows.of_key(key, i * 32 + lane) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kVEach; ++i) {
      v[i] = i * 32 + lane < kV ? rows.of_value(key, i * 32 + lane) : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int row = first + r;
      // One query sees the same keys with all of its heads; what a row does not see may be NaN.
      if (row >= kRows) continue;
      if (kQueries > 1 && (key < rows.begin(row) || key >= rows.end(row))) continue;
      float dot = 0.0f;
#pragma unroll
      for (int i = 0; i < kDEach; ++i) dot += q[r][i] * k[i];
      const float score = rows.scored(metal::simd_sum(dot), row, key);
      const float new_max = larger(row_max[r], score);
      const float factor = rescale(row_max[r], new_max), weight = weight_of(score, new_max);
      row_max[r] = new_max;
      row_sum[r] = row_sum[r] * factor + weight;
#pragma unroll
      for (int i = 0; i < kVEach; ++i) of_row[r][i] = of_row[r][i] * factor + weight * v[i];
    }
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    if (lane == 0) {
      maxima[own * kEach + r] = row_max[r];
      totals[own * kEach + r] = row_sum[r];
    }
#pragma unroll
    for (int i = 0; i < kVEach; ++i) {
      partial[(own * kEach + r) * kPartial + i * 32 + lane] = of_row[r][i];
    }
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (int r = 0; r < kEach && first + r < kRows; ++r) {
    float all_max = kMasked, all_sum = 0.0f;
    for (int i = 0; i < kSimdGroups; ++i) all_max = larger(all_max, maxima[i * kEach + r]);
    for (int i = 0; i < kSimdGroups; ++i) {
      all_sum += rescale(maxima[i * kEach + r], all_max) * totals[i * kEach + r];
    }
    for (int column = t; column < kV; column += kSimdGroups * 32) {
      float sum = 0.0f;
      for (int i = 0; i < kSimdGroups; ++i) {
        sum +=
            rescale(maxima[i * kEach + r], all_max) * partial[(i * kEach + r) * kPartial + column];
      }
      sums.put(rows, part, first + r, column, sum, all_max, all_sum);
    }
  }
}

}  // namespace npusim
