// Attention of few queries: a threadgroup has one row, its eight SIMD groups take keys in turn, and
// their lanes the columns. What each has summed is combined in the order of the SIMD groups.
#pragma once
#include "kernels/metal/attention/rows.h"

namespace npusim {

enum : int { kSimdGroups = 8, kDEach = (kD + 31) / 32, kVEach = (kV + 31) / 32 };

inline void run_few(Head head, Keys keys, device T* y, int row, int t, threadgroup float* maxima,
                    threadgroup float* totals, threadgroup float* partial) {
  const int lane = t % 32, own = t / 32;
  const int64_t end = keys.visible_end(Head::query(row));
  const int64_t begin = keys.visible_begin(Head::query(row));
  float q[kDEach], sums[kVEach] = {}, row_max = kMasked, row_sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDEach; ++i) {
    const int d = i * 32 + lane;
    q[i] = d < kD ? static_cast<float>(head.q_row(row)[d]) : 0.0f;
  }
  for (int64_t key = begin + own; key < end; key += kSimdGroups) {
    device const T* k = head.key(key);
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kDEach; ++i) {
      const int d = i * 32 + lane;
      if (d < kD) dot += q[i] * static_cast<float>(k[d]);
    }
    const float score = head.score(metal::simd_sum(dot), row, key);
    const float new_max = larger(row_max, score);
    const float factor = rescale(row_max, new_max), weight = weight_of(score, new_max);
    row_max = new_max;
    row_sum = row_sum * factor + weight;
    device const T* v = head.value(key);
#pragma unroll
    for (int i = 0; i < kVEach; ++i) {
      const int column = i * 32 + lane;
      sums[i] = sums[i] * factor + (column < kV ? weight * static_cast<float>(v[column]) : 0.0f);
    }
  }
  if (lane == 0) {
    maxima[own] = row_max;
    totals[own] = row_sum;
  }
#pragma unroll
  for (int i = 0; i < kVEach; ++i) partial[(own * kVEach + i) * 32 + lane] = sums[i];
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  row_max = kMasked;
  for (int i = 0; i < kSimdGroups; ++i) row_max = larger(row_max, maxima[i]);
  row_sum = 0.0f;
  for (int i = 0; i < kSimdGroups; ++i) row_sum += rescale(maxima[i], row_max) * totals[i];
  for (int column = t; column < kV; column += kSimdGroups * 32) {
    float sum = 0.0f;
    for (int i = 0; i < kSimdGroups; ++i) {
      sum += rescale(maxima[i], row_max) * partial[i * kVEach * 32 + column];
    }
    y[head.y_row(row) + column] = result_of(sum, row_sum);
  }
}

}  // namespace npusim
