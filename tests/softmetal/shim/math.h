// Functions of floating-point scalars. Each is computed in float and rounded once; `precise` and
// `fast` are the same here, as the processor has one kind.
#pragma once

// fn(float…) -> float, for the three types, in metal, metal::precise and metal::fast. There is no
// overload for bfloat in MSL's precise and fast.
#define MSL_UNARY(name, expression)         \
  inline float name(float x) {              \
    return expression;                      \
  }                                         \
  inline half name(half h) {                \
    const float x = h;                      \
    return static_cast<half>(expression);   \
  }                                         \
  inline bfloat name(bfloat b) {            \
    const float x = b;                      \
    return static_cast<bfloat>(expression); \
  }
#define MSL_BINARY(name, expression)        \
  inline float name(float x, float y) {     \
    return expression;                      \
  }                                         \
  inline half name(half a, half b) {        \
    const float x = a, y = b;               \
    return static_cast<half>(expression);   \
  }                                         \
  inline bfloat name(bfloat a, bfloat b) {  \
    const float x = a, y = b;               \
    return static_cast<bfloat>(expression); \
  }
#define MSL_TERNARY(name, expression)                \
  inline float name(float x, float y, float z) {     \
    return expression;                               \
  }                                                  \
  inline half name(half a, half b, half c) {         \
    const float x = a, y = b, z = c;                 \
    return static_cast<half>(expression);            \
  }                                                  \
  inline bfloat name(bfloat a, bfloat b, bfloat c) { \
    const float x = a, y = b, z = c;                 \
    return static_cast<bfloat>(expression);          \
  }
#define MSL_PREDICATE(name, expression) \
  inline bool name(float x) {           \
    return expression;                  \
  }                                     \
  inline bool name(half x) {            \
    return expression;                  \
  }                                     \
  inline bool name(bfloat b) {          \
    const float x = b;                  \
    return expression;                  \
  }

namespace _msl {
// Rounded to float once: half and bfloat products are exact in float, their sum with z in double.
inline float fma_once(float x, float y, float z) {
  return __builtin_fmaf(x, y, z);
}
inline float least(float x, float y) {
  return __builtin_fminf(x, y);
}
inline float greatest(float x, float y) {
  return __builtin_fmaxf(x, y);
}
}  // namespace _msl

namespace metal {
namespace precise {
MSL_UNARY(acos, __builtin_acosf(x))
MSL_UNARY(acosh, __builtin_acoshf(x))
MSL_UNARY(asin, __builtin_asinf(x))
MSL_UNARY(asinh, __builtin_asinhf(x))
MSL_UNARY(atan, __builtin_atanf(x))
MSL_UNARY(atanh, __builtin_atanhf(x))
MSL_UNARY(ceil, __builtin_ceilf(x))
MSL_UNARY(cos, __builtin_cosf(x))
MSL_UNARY(cosh, __builtin_coshf(x))
MSL_UNARY(cospi, __builtin_cosf(x * 3.14159265358979323846f))
MSL_UNARY(exp, __builtin_expf(x))
MSL_UNARY(exp2, __builtin_exp2f(x))
MSL_UNARY(exp10, __builtin_powf(10.0f, x))
MSL_UNARY(fabs, __builtin_fabsf(x))
MSL_UNARY(abs, __builtin_fabsf(x))
MSL_UNARY(floor, __builtin_floorf(x))
MSL_UNARY(fract, _msl::least(x - __builtin_floorf(x), 0x1.fffffep-1f))
MSL_UNARY(log, __builtin_logf(x))
MSL_UNARY(log2, __builtin_log2f(x))
MSL_UNARY(log10, __builtin_log10f(x))
MSL_UNARY(rint, __builtin_rintf(x))
MSL_UNARY(round, __builtin_roundf(x))
MSL_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))
MSL_UNARY(saturate, _msl::least(_msl::greatest(x, 0.0f), 1.0f))
MSL_UNARY(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f)
MSL_UNARY(sin, __builtin_sinf(x))
MSL_UNARY(sinh, __builtin_sinhf(x))
MSL_UNARY(sinpi, __builtin_sinf(x * 3.14159265358979323846f))
MSL_UNARY(sqrt, __builtin_sqrtf(x))
MSL_UNARY(tan, __builtin_tanf(x))
MSL_UNARY(tanh, __builtin_tanhf(x))
MSL_UNARY(trunc, __builtin_truncf(x))

MSL_BINARY(atan2, __builtin_atan2f(x, y))
MSL_BINARY(copysign, __builtin_copysignf(x, y))
MSL_BINARY(fdim, __builtin_fdimf(x, y))
MSL_BINARY(fmax, _msl::greatest(x, y))
MSL_BINARY(fmin, _msl::least(x, y))
MSL_BINARY(fmod, __builtin_fmodf(x, y))
MSL_BINARY(max, _msl::greatest(x, y))
MSL_BINARY(min, _msl::least(x, y))
MSL_BINARY(pow, __builtin_powf(x, y))
MSL_BINARY(powr, __builtin_powf(x, y))
MSL_BINARY(step, y < x ? 0.0f : 1.0f)

MSL_TERNARY(clamp, _msl::least(_msl::greatest(x, y), z))
MSL_TERNARY(fma, _msl::fma_once(x, y, z))
MSL_TERNARY(mix, x + (y - x) * z)
}  // namespace precise
namespace fast {
using namespace precise;
}
using namespace precise;

MSL_PREDICATE(isfinite, __builtin_isfinite(x))
MSL_PREDICATE(isinf, __builtin_isinf(x))
MSL_PREDICATE(isnan, __builtin_isnan(x))
MSL_PREDICATE(isnormal, __builtin_isnormal(x))
MSL_PREDICATE(signbit, __builtin_signbit(x))

inline float ldexp(float x, int k) {
  return __builtin_ldexpf(x, k);
}
inline half ldexp(half x, int k) {
  return static_cast<half>(__builtin_ldexpf(x, k));
}
inline int ilogb(float x) {
  return __builtin_ilogbf(x);
}
inline float modf(float x, thread float& whole) {
  whole = __builtin_truncf(x);
  return __builtin_copysignf(__builtin_isinf(x) ? 0.0f : x - whole, x);
}
inline float frexp(float x, thread int& exponent) {
  return __builtin_frexpf(x, &exponent);
}
inline float sincos(float x, thread float& cosine) {
  cosine = __builtin_cosf(x);
  return __builtin_sinf(x);
}
inline float nextafter(float x, float y) {
  return __builtin_nextafterf(x, y);
}
}  // namespace metal
#undef MSL_UNARY
#undef MSL_BINARY
#undef MSL_TERNARY
#undef MSL_PREDICATE
