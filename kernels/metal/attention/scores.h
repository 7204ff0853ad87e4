// What all attention has in common: sizes, scores of base 2, running maxima, results. The
// parameters are those of `attention` or `attention_step`.
#pragma once
#include "kernels/metal/common/scalar_ops.h"

namespace npusim {

typedef Storage<params.dtype> T;

constant constexpr int kGroup = static_cast<int>(params.heads / params.kv_heads);
constant constexpr int kQueries = NPUSIM_QUERIES;
constant constexpr int kRows = kQueries * kGroup;  // of a key/value head
constant constexpr int kD = static_cast<int>(params.head_dim);
constant constexpr int kV = static_cast<int>(params.v_dim);
constant constexpr float kLog2E = 1.44269504f;
constant constexpr float kMasked = -INFINITY;  // the score of a key that is not visible
constant constexpr float kLeastFinite = -3.402823466e+38f;

// A score times log2(e), so that weights are powers of two.
inline float scaled(float dot) {
  if (params.softcap != 0.0f) {
    const float capped = metal::precise::tanh(dot * (params.scale / params.softcap));
    return params.softcap * kLog2E * capped;
  }
  return dot * (params.scale * kLog2E);
}
// e to the power of what a score of base 2 is above a row's maximum, or above 0 where there is
// none.
inline float weight_of(float score, float row_max) {
  return metal::precise::exp2(score - (row_max == kMasked ? 0.0f : row_max));
}
// The factor of sums that are relative to the row maximum `old`, for a new one that is not smaller.
inline float rescale(float old, float row_max) {
  return old == kMasked ? 0.0f : metal::precise::exp2(old - row_max);
}
inline float larger(float a, float b) {
  return a > b ? a : b;
}

// An element of y, which is 0 where a row sees nothing.
inline T result_of(float sum, float row_sum) {
  return encode<T>(row_sum != 0.0f ? sum / row_sum : 0.0f);
}

}  // namespace npusim
