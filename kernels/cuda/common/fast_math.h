// Functions in an instruction or two, within 2^-21 of their size, for results of which 16 bits are
// kept: the exact ones branch, and a lane's results then wait for each other.
#pragma once
#include "kernels/cuda/common/scalar_ops.h"

namespace npusim {

// Powers of two, of e, 1/x, and one over a root. A power below the least normal number is 0.
#ifdef __CUDA_ARCH__
inline float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
inline float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
inline float fast_rsqrt(float x) {
  float result;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#else
inline float fast_exp2(float x) {
  return scalar::exp2(x);
}
inline float fast_reciprocal(float x) {
  return 1.0f / x;
}
inline float fast_rsqrt(float x) {
  return scalar::rsqrt(x);
}
#endif
inline float fast_exp(float x) {
  return fast_exp2(x * 1.4426950408889634f);
}
inline float fast_sigmoid(float x) {
  return fast_reciprocal(1.0f + fast_exp(-x));
}
// Near 0, where the quotient would cancel, the first terms of the series.
inline float fast_tanh(float x) {
  const float square = x * x;
  const float near = ((square * 0.0218694885f - 0.0539682540f) * square + 0.1333333333f) * square;
  const float quotient = 1.0f - 2.0f * fast_reciprocal(1.0f + fast_exp(2.0f * x));
  return square < 0.0625f ? x + x * square * (near - 0.3333333333f) : quotient;
}

}  // namespace npusim
