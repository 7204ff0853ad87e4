// The running row maxima and row sums of a warp's 16 rows of scores, as the accumulators of
// mma_16x8x16 hold them.
#pragma once
#include "kernels/cuda/attention/scores.h"

namespace npusim {

// kHalves: whether rows g + 8 count, or only rows g.
template <int kHalves>
struct OnlineSoftmax {
  float row_max[kHalves], row_sum[kHalves];  // of rows g and g + 8; sums of this lane's keys

  OnlineSoftmax() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      row_max[half] = kMasked;
      row_sum[half] = 0.0f;
    }
  }

  // Turns scores into weights relative to the new row maxima; what is relative to the old ones is
  // to be multiplied by `corrections`. kIsDot: scores are dot products, to be multiplied by
  // kFactor.
  template <bool kIsDot, int kEights>
  void weigh(float (&scores)[kEights][4], float (&corrections)[kHalves]) {
    constexpr float kTimes = kIsDot ? kFactor : 1.0f;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float most = kMasked;
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        most = fmaxf(most, fmaxf(scores[j][half * 2], scores[j][half * 2 + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float new_max = fmaxf(row_max[half], most * kTimes);
      corrections[half] = rescale(row_max[half], new_max);
      const float base = new_max == kMasked ? 0.0f : new_max;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) {
          scores[j][e] = fast_exp2(scores[j][e] * kTimes - base);
          sum += scores[j][e];
        }
      }
      row_max[half] = new_max;
      row_sum[half] = row_sum[half] * corrections[half] + sum;
    }
  }
};

}  // namespace npusim
