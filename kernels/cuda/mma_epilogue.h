// What follows the sums of a product: bias, residual, activation, storage.
#pragma once
#include "kernels/cuda/mma_types.h"
#include "kernels/cuda/scalar_ops.h"

namespace npusim {

// bias, residual and y of a command whose operands before them are x and `weights` parts of W.
// Rows of y and of the residual lie where the kernel says; columns are contiguous.
struct Epilogue {
  using Y = Storage<params.y_dtype>;
  using R = Storage<params.residual ? params.r_dtype : 0>;
  const float* bias;
  const R* residual;
  Y* y;

  Epilogue(void* const* operands, int weights) {
    void* const* at = operands + 1 + weights;
    bias = static_cast<const float*>(at[0]);
    residual = static_cast<const R*>(at[params.has_bias ? 1 : 0]);
    y = static_cast<Y*>(at[(params.has_bias ? 1 : 0) + (params.residual ? 1 : 0)]);
  }

  float bias_at(int64_t column) const {
    if constexpr (params.has_bias != 0) return bias[column];
    return 0.0f;
  }
  float residual_at(int64_t at) const {
    if constexpr (params.residual != 0) return to_float(residual[at]);
    return 0.0f;
  }

  // What y is of a sum, given what is added to it.
  static float finished(float v, float bias, float residual) {
    if constexpr (params.has_bias != 0) v += bias;
    if constexpr (params.residual == 1) v += residual;
    v = scalar::activate<params.act>(v, params.act_lo, params.act_hi);
    if constexpr (params.residual == 2) v += residual;
    return v;
  }
  // act(first + bias) * (second + its bias).
  static float finished_gated(float first, float second, float bias, float second_bias) {
    if constexpr (params.has_bias != 0) {
      first += bias;
      second += second_bias;
    }
    return scalar::activate<params.act>(first, params.act_lo, params.act_hi) * second;
  }
  float finish(float v, int64_t r_row, int64_t column) const {
    return finished(v, bias_at(column), residual_at(r_row + column));
  }
  // The columns of `second` follow those of `first`.
  float finish_gated(float first, float second, int64_t column, int64_t n) const {
    return finished_gated(first, second, bias_at(column), bias_at(n + column));
  }

  // One value, and two beside each other of which the second may lie outside.
  void store(int64_t at, float v) const { y[at] = encode<Y>(v); }
  void store_pair(int64_t at, float first, float second, bool both) const {
    if constexpr (sizeof(Y) == 2) {
      if (both && is_aligned(y + at, 4)) {
        *reinterpret_cast<unsigned*>(y + at) = pack_pair<Y>(first, second);
        return;
      }
    }
    store(at, first);
    if (both) store(at + 1, second);
  }
};

}  // namespace npusim
