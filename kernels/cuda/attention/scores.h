// Scores of attention: the head sizes, scaling, and the online softmax's correction.
#pragma once
#include "kernels/cuda/common/fast_math.h"
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

using T = Storage<params.dtype>;
constexpr int kGroup = static_cast<int>(params.heads / params.kv_heads);
constexpr int kD = static_cast<int>(params.head_dim), kV = static_cast<int>(params.v_dim);
// In what the tensor cores multiply at once: sixteens of columns, and eights, an even number.
constexpr int kDSteps = (kD + 15) / 16, kVBlocks = (kV + 15) / 16 * 2;
constexpr float kLog2E = 1.44269504f;
constexpr float kMasked = -kInfinity<float>;  // the score of a key that is not visible

constexpr float kLeastFinite = -3.402823466e+38f;

// A score times log2(e), so that weights are powers of two.
constexpr float kFactor = params.scale * kLog2E;
inline float scaled(float dot) {
  if constexpr (params.softcap != 0) {
    return params.softcap * kLog2E * tanhf(dot * (params.scale / params.softcap));
  }
  return dot * kFactor;
}

// What a row's sums are multiplied by at the end: a row without keys is 0, and NaN stays NaN.
inline float inverse_sum(float row_sum) {
  return row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
}
// The factor of sums that are relative to the row maximum `old`, for a new one that is not smaller.
inline float rescale(float old, float row_max) {
  return old == kMasked ? 0.0f : exp2f(old - row_max);
}

}  // namespace npusim
