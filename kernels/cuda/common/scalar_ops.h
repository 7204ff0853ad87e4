// The real functions of CUDA as scalar programs name them, and those of all GPUs over them.
#pragma once
#include "kernels/cuda/common/scalar.h"

namespace npusim {
namespace scalar {

#define NPUSIM_REAL(name)        \
  inline float name(float x) {   \
    return ::name##f(x);         \
  }                              \
  inline double name(double x) { \
    return ::name(x);            \
  }
NPUSIM_REAL(exp)
NPUSIM_REAL(exp2)
NPUSIM_REAL(expm1)
NPUSIM_REAL(log)
NPUSIM_REAL(log1p)
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
NPUSIM_REAL(erf)
NPUSIM_REAL(floor)
NPUSIM_REAL(ceil)
NPUSIM_REAL(trunc)
#undef NPUSIM_REAL

inline float abs(float x) {
  return ::fabsf(x);
}
inline double abs(double x) {
  return ::fabs(x);
}
inline float round(float x) {
  return ::rintf(x);
}
inline double round(double x) {
  return ::rint(x);
}
inline float fmod(float a, float b) {
  return ::fmodf(a, b);
}
inline double fmod(double a, double b) {
  return ::fmod(a, b);
}
inline float atan2(float a, float b) {
  return ::atan2f(a, b);
}
inline double atan2(double a, double b) {
  return ::atan2(a, b);
}
inline float pow(float a, float b) {
  return ::powf(a, b);
}
inline double pow(double a, double b) {
  return ::pow(a, b);
}
template <typename C>
inline double to_d(C x) {
  return static_cast<double>(x);
}
inline float to_f16(float x) {
  return to_float(to_float16(x));
}
inline float to_bf16(float x) {
  return to_float(to_bfloat16(x));
}

}  // namespace scalar
}  // namespace npusim

#include "kernels/shared/scalar_ops.h"
