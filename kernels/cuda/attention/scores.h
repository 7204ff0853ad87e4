// Scores of attention: the head sizes, and how sums under different top scores go together.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

using T = Storage<params.dtype>;
constexpr int kGroup = static_cast<int>(params.heads / params.kv_heads);
constexpr int kD = static_cast<int>(params.head_dim), kV = static_cast<int>(params.v_dim);
constexpr float kLog2E = 1.44269504f;
constexpr float kNothing = -kInfinity<float>;  // the score of a key that is not seen

// A score times log2(e), so that weights are powers of two.
inline float scaled(float dot) {
  if constexpr (params.softcap != 0) {
    return params.softcap * kLog2E * tanhf(dot * (params.scale / params.softcap));
  }
  return dot * (params.scale * kLog2E);
}

// How much sums under top `old` count under `top`, which is not smaller.
inline float shrink(float old, float top) {
  return old == kNothing ? 0.0f : exp2f(old - top);
}

}  // namespace npusim
