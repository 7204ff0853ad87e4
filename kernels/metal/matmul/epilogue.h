// What follows the sums of a product: factors, bias, residual, activation, offsets, storage. The
// rule says by NPUSIM_BIAS, NPUSIM_RESIDUAL and NPUSIM_Y where these operands are bound; 0: there
// is none.
#pragma once
#include "kernels/metal/common/scalar_ops.h"

#if NPUSIM_BIAS
#define NPUSIM_BIAS_OPERAND device const float *bias [[buffer(NPUSIM_BIAS)]],
#define NPUSIM_BIAS_POINTER bias
#else
#define NPUSIM_BIAS_OPERAND
#define NPUSIM_BIAS_POINTER nullptr
#endif
#if NPUSIM_RESIDUAL
#define NPUSIM_RESIDUAL_OPERAND device const npusim::R *residual [[buffer(NPUSIM_RESIDUAL)]],
#define NPUSIM_RESIDUAL_POINTER residual
#else
#define NPUSIM_RESIDUAL_OPERAND
#define NPUSIM_RESIDUAL_POINTER nullptr
#endif
// Parameters of an entry, before the built-in ones.
#define NPUSIM_EPILOGUE_OPERANDS \
  NPUSIM_BIAS_OPERAND NPUSIM_RESIDUAL_OPERAND device npusim::Y *y [[buffer(NPUSIM_Y)]],
#define NPUSIM_EPILOGUE {NPUSIM_BIAS_POINTER, NPUSIM_RESIDUAL_POINTER, y}

namespace npusim {

typedef Storage<params.y_dtype> Y;
typedef Storage<params.residual != 0 ? params.r_dtype : 0> R;

struct Epilogue {
  device const float* bias;
  device const R* residual;
  device Y* y;

  static float activated(float v) {
    return scalar::activate<params.act>(v, params.act_lo, params.act_hi);
  }
  // y of a sum; `vector` floats lie between a convolution's bias, factors and offsets.
  float finished(float v, int64_t r_at, int64_t column, int64_t vector) const {
    if (params.has_bias > 1) v *= bias[vector + column];
    if (params.has_bias != 0) v += bias[column];
    float added = 0.0f;
    if (params.residual != 0) added = static_cast<float>(residual[r_at]);
    if (params.residual == 1) v += added;
    v = activated(v);
    if (params.residual == 2) v += added;
    if (params.has_bias > 2) v += bias[2 * vector + column];
    return v;
  }
  // act(first + bias) * (second + its bias), which is `n` floats further on.
  float gated(float first, float second, int64_t column, int64_t n) const {
    if (params.has_bias != 0) {
      first += bias[column];
      second += bias[n + column];
    }
    return activated(first) * second;
  }
  void put(int64_t at, float v) const { y[at] = encode<Y>(v); }
};

}  // namespace npusim
