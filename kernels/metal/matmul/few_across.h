// A product of NPUSIM_FEW rows by a matrix whose neighbouring columns are neighbours in memory: a
// threadgroup has kSpan of them, NPUSIM_EACH for a lane, and its SIMD groups take K in turn. Their
// sums are added up in the order of the SIMD groups. The `Source` has a_at and b_at.
#pragma once
#include "kernels/metal/matmul/sums.h"

namespace npusim {

enum : int {
  kFew = NPUSIM_FEW,
  kEach = NPUSIM_EACH,
  kGroups = 8,         // SIMD groups
  kSpan = 32 * kEach,  // columns of a threadgroup
  kRoom = kGroups * kFew * kSpan
};

template <typename Source, typename Output>
inline void run_few_across(thread const Source& source, thread const Output& output, int64_t group,
                           int64_t begin, int64_t end, int t, threadgroup float* room) {
  const int64_t first = group * kSpan;
  const int own = t / 32, lane = t % 32;
  float sums[kFew][kEach] = {};
  for (int64_t k = begin + own; k < end; k += kGroups) {
    float w[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) w[i] = source.b_at(first + lane * kEach + i, k);
#pragma unroll
    for (int m = 0; m < kFew; ++m) {
      const float x = source.a_at(m, k);
#pragma unroll
      for (int i = 0; i < kEach; ++i) sums[m][i] += x * w[i];
    }
  }
#pragma unroll
  for (int m = 0; m < kFew; ++m) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) room[(own * kFew + m) * kSpan + lane * kEach + i] = sums[m][i];
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (int at = t; at < kFew * kSpan; at += kGroups * 32) {
    float sum = 0.0f;
    for (int i = 0; i < kGroups; ++i) sum += room[i * kFew * kSpan + at];
    if (first + at % kSpan < Source::kColumns) {
      output.put_at(at / kSpan, first + at % kSpan, sum, sum);
    }
  }
}

}  // namespace npusim
