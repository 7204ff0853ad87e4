// The real functions of Metal as scalar programs name them, and those of all GPUs over them.
// Metal's library has no erf, expm1 and log1p: they are computed as the CPU's kernels do.
#pragma once
#include "kernels/metal/common/scalar.h"

namespace npusim {
namespace scalar {

#define NPUSIM_REAL(name)           \
  inline float name(float x) {      \
    return metal::precise::name(x); \
  }
NPUSIM_REAL(exp)
NPUSIM_REAL(exp2)
NPUSIM_REAL(log)
NPUSIM_REAL(log2)
NPUSIM_REAL(log10)
NPUSIM_REAL(sqrt)
NPUSIM_REAL(sin)
NPUSIM_REAL(cos)
NPUSIM_REAL(tan)
NPUSIM_REAL(asin)
NPUSIM_REAL(acos)
NPUSIM_REAL(atan)
NPUSIM_REAL(sinh)
NPUSIM_REAL(cosh)
NPUSIM_REAL(asinh)
NPUSIM_REAL(acosh)
NPUSIM_REAL(atanh)
NPUSIM_REAL(tanh)
NPUSIM_REAL(floor)
NPUSIM_REAL(ceil)
NPUSIM_REAL(trunc)
#undef NPUSIM_REAL
inline float abs(float x) {
  return metal::precise::fabs(x);
}
inline float round(float x) {
  return metal::precise::rint(x);
}
inline float fmod(float a, float b) {
  return metal::precise::fmod(a, b);
}
inline float atan2(float a, float b) {
  return metal::precise::atan2(a, b);
}
inline float pow(float a, float b) {
  return metal::precise::pow(a, b);
}

// e^x - 1: x = n ln 2 + r, and 2^n (e^r - 1) + 2^n - 1 in halves, as 2^128 does not exist.
inline float expm1(float x) {
  if (x != x || metal::precise::fabs(x) < 1.49011612e-08f) return x;
  if (x > 89.0f) return INFINITY;
  if (x < -20.0f) return -1.0f;
  const float n = metal::precise::rint(x * 1.44269502f);
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-06f;
  // (e^r - 1 - r) / r^2 on |r| < 0.35, error 3e-9.
  float p = 0.000198459573f;
  p = p * r + 0.00139416521f;
  p = p * r + 0.00833339151f;
  p = p * r + 0.0416663475f;
  p = p * r + 0.166666657f;
  p = p * r + 0.5f;
  const float unit = metal::ldexp(0.5f, static_cast<int>(n));
  return 2.0f * (unit * (r * r * p + r) + (unit - 0.5f));
}
// log(1 + x), by what rounding 1 + x loses: Kahan's correction (Higham, Accuracy and Stability of
// Numerical Algorithms, 1.14.1).
inline float log1p(float x) {
  const float u = 1.0f + x;
  if (u == 1.0f) return x;
  if (!(u > 0.0f) || u == INFINITY) return metal::precise::log(u);
  return metal::precise::log(u) * (x / (u - 1.0f));
}
inline float erf(float x) {
  const float a = metal::precise::fabs(x);
  if (a < 1.0f) {
    const float z = x * x;
    // erf(x)/x - 1, error 5e-9.
    float p = 7.85385419e-05f;
    p = p * z - 0.000801019138f;
    p = p * z + 0.00518832728f;
    p = p * z - 0.026853811f;
    p = p * z + 0.112835854f;
    p = p * z - 0.37612626f;
    p = p * z + 0.128379166f;
    return x + x * p;
  }
  if (x != x) return x;
  const float b = a > 4.0f ? 4.0f : a;
  // log(1 - erf(x))/x on [1, 4], where erf reaches 1; error 8e-9.
  float q = -3.55704788e-06f;
  q = q * b + 2.8435883e-05f;
  q = q * b + 0.000138747011f;
  q = q * b - 0.00318200816f;
  q = q * b + 0.0230916291f;
  q = q * b - 0.105669051f;
  q = q * b - 0.63541013f;
  q = q * b - 1.12859952f;
  const float far = 1.0f - metal::precise::exp(b * q);
  return x < 0.0f ? -far : far;
}
inline float to_f16(float x) {
  return static_cast<float>(static_cast<half>(x));
}
#if __METAL_VERSION__ >= 310
inline float to_bf16(float x) {
  return static_cast<float>(static_cast<bfloat>(x));
}
#endif

}  // namespace scalar
}  // namespace npusim

#include "kernels/shared/scalar_ops.h"
