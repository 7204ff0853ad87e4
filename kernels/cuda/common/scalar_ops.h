// The opcodes of abi/scalar.py as functions of the same names, on one float, double or int64_t
// each. Owns PyTorch's rules for division, remainder, powers and shifts; integers wrap. Tests and
// comparisons return 0 or 1.
#pragma once
#include "kernels/cuda/common/scalar.h"

namespace npusim::scalar {

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

inline uint64_t bits(int64_t x) {
  return static_cast<uint64_t>(x);
}
inline int64_t wrap(uint64_t x) {
  return static_cast<int64_t>(x);
}

template <typename C>
inline C copy(C x) {
  return x;
}
template <typename C>
inline C neg(C x) {
  if constexpr (kSame<C, int64_t>) return wrap(0 - bits(x));
  return -x;
}
inline float abs(float x) {
  return ::fabsf(x);
}
inline double abs(double x) {
  return ::fabs(x);
}
inline int64_t abs(int64_t x) {
  return x < 0 ? neg(x) : x;
}
inline float round(float x) {
  return ::rintf(x);
}
inline double round(double x) {
  return ::rint(x);
}
template <typename C>
inline C rsqrt(C x) {
  return C{1} / sqrt(x);
}
template <typename C>
inline C reciprocal(C x) {
  return C{1} / x;
}
template <typename C>
inline C sigmoid(C x) {
  return C{1} / (C{1} + exp(-x));
}
template <typename C>
inline C sign(C x) {
  return static_cast<C>((x > 0) - (x < 0));
}
template <typename C>
inline C relu(C x) {
  return x < 0 ? C{0} : x;
}
template <typename C>
inline C gelu(C x) {
  return C(0.5) * x * (C{1} + erf(x * C(0.70710678118654752440)));
}
template <typename C>
inline C gelu_tanh(C x) {
  const C u = C(0.79788456080286535588) * (x + C(0.044715) * x * x * x);
  return C(0.5) * x * (C{1} + tanh(u));
}
template <typename C>
inline C silu(C x) {
  return x / (C{1} + exp(-x));
}
template <typename C>
inline C clamp_six(C x) {
  return x < 0 ? C{0} : (x > 6 ? C{6} : x);
}
template <typename C>
inline C hardswish(C x) {
  return x * (clamp_six(x + 3) / 6);
}
template <typename C>
inline C hardsigmoid(C x) {
  return clamp_six(x + 3) / 6;
}
template <typename C>
inline C softplus(C x) {
  return x > 20 ? x : log1p(exp(x));
}
template <typename C>
inline C mish(C x) {
  return x * tanh(softplus(x));
}
inline int64_t bitwise_not(int64_t x) {
  return ~x;
}

template <typename C>
inline int64_t isnan(C x) {
  return x != x;
}
template <typename C>
inline int64_t isinf(C x) {
  return abs(x) == kInfinity<C>;
}
template <typename C>
inline int64_t logical_not(C x) {
  return x == 0;
}
template <typename C>
inline float to_f(C x) {
  return static_cast<float>(x);
}
template <typename C>
inline double to_d(C x) {
  return static_cast<double>(x);
}
template <typename C>
inline int64_t to_i(C x) {
  return decode<int64_t>(x);
}
template <typename C>
inline int64_t to_i32(C x) {
  return to_integer32(x);
}
inline float to_f16(float x) {
  return to_float(to_float16(x));
}
inline float to_bf16(float x) {
  return to_float(to_bfloat16(x));
}
template <typename C>
inline int64_t to_bool(C x) {
  return x != 0;
}

template <typename C>
inline C add(C a, C b) {
  if constexpr (kSame<C, int64_t>) return wrap(bits(a) + bits(b));
  return a + b;
}
template <typename C>
inline C sub(C a, C b) {
  if constexpr (kSame<C, int64_t>) return wrap(bits(a) - bits(b));
  return a - b;
}
template <typename C>
inline C mul(C a, C b) {
  if constexpr (kSame<C, int64_t>) return wrap(bits(a) * bits(b));
  return a * b;
}
template <typename C>
inline C div(C a, C b) {
  return a / b;
}
// NaN wins; of two equal numbers the first, of which only zeros can be told apart.
template <typename C>
inline C maximum(C a, C b) {
  return b > a || b != b ? b : a;
}
template <typename C>
inline C minimum(C a, C b) {
  return b < a || b != b ? b : a;
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
inline int64_t pow(int64_t base, int64_t exponent) {
  if (exponent < 0) {  // 1/base, truncated
    if (base == 1) return 1;
    if (base == -1) return exponent % 2 ? -1 : 1;
    return 0;
  }
  uint64_t power = 1, square = bits(base);
  for (; exponent; exponent >>= 1, square *= square) power *= exponent & 1 ? square : 1;
  return wrap(power);
}

template <typename C>
inline C div_trunc(C a, C b) {
  return trunc(a / b);
}
// By way of the remainder, which stays right where a / b rounds up to an integer.
template <typename C>
inline C div_floor(C a, C b) {
  if (b == 0) return a / b;
  const C mod = fmod(a, b);
  C quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
  if (quotient == 0) return a / b < 0 || (a / b == 0 && C{1} / (a / b) < 0) ? -C{0} : C{0};
  const C whole = floor(quotient);
  return quotient - whole > C(0.5) ? whole + 1 : whole;
}
template <typename C>
inline C remainder(C a, C b) {
  const C mod = fmod(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}

// Divisions of integers learn of zero divisors; the one quotient that overflows wraps.
inline bool divides(int64_t a, int64_t b, Failure* failure) {
  if (b == 0) report(failure, kDivisionByZero, a, 0);
  return b != 0;
}
inline int64_t div_trunc(int64_t a, int64_t b, Failure* failure) {
  if (!divides(a, b, failure)) return 0;
  return b == -1 ? neg(a) : a / b;
}
inline int64_t fmod(int64_t a, int64_t b, Failure* failure) {
  if (!divides(a, b, failure)) return 0;
  return b == -1 ? 0 : a % b;
}
inline int64_t div_floor(int64_t a, int64_t b, Failure* failure) {
  if (!divides(a, b, failure)) return 0;
  const int64_t quotient = b == -1 ? neg(a) : a / b, mod = b == -1 ? 0 : a % b;
  return quotient - (mod != 0 && (b < 0) != (mod < 0));
}
inline int64_t remainder(int64_t a, int64_t b, Failure* failure) {
  if (!divides(a, b, failure)) return 0;
  const int64_t mod = b == -1 ? 0 : a % b;
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}

template <typename C>
inline int64_t eq(C a, C b) {
  return a == b;
}
template <typename C>
inline int64_t ne(C a, C b) {
  return a != b;
}
template <typename C>
inline int64_t lt(C a, C b) {
  return a < b;
}
template <typename C>
inline int64_t le(C a, C b) {
  return a <= b;
}
template <typename C>
inline int64_t gt(C a, C b) {
  return a > b;
}
template <typename C>
inline int64_t ge(C a, C b) {
  return a >= b;
}
template <typename C>
inline int64_t logical_and(C a, C b) {
  return a != 0 && b != 0;
}
template <typename C>
inline int64_t logical_or(C a, C b) {
  return a != 0 || b != 0;
}
template <typename C>
inline int64_t logical_xor(C a, C b) {
  return (a != 0) != (b != 0);
}
inline int64_t bitwise_and(int64_t a, int64_t b) {
  return a & b;
}
inline int64_t bitwise_or(int64_t a, int64_t b) {
  return a | b;
}
inline int64_t bitwise_xor(int64_t a, int64_t b) {
  return a ^ b;
}
inline int64_t shift_left(int64_t a, int64_t b) {
  return b >= 0 && b < 64 ? wrap(bits(a) << b) : 0;
}
inline int64_t shift_right(int64_t a, int64_t b) {
  return a >> (b >= 0 && b < 64 ? b : 63);
}

template <typename C>
inline C where(int64_t condition, C a, C b) {
  return condition ? a : b;
}
template <typename C>
inline C fma(C a, C b, C c) {
  return a * b + c;
}
template <typename C>
inline C clamp(C x, C lo, C hi) {
  return minimum(maximum(x, lo), hi);
}

// A unary opcode that is a constant: the activation of an epilogue.
template <int32_t kOp, typename C>
inline C activate(C x, C lo = 0, C hi = 0) {
  using enum abi::Opcode;
  constexpr auto op = static_cast<abi::Opcode>(kOp);
  if constexpr (op == kNeg) return neg(x);
  if constexpr (op == kAbs) return abs(x);
  if constexpr (op == kExp) return exp(x);
  if constexpr (op == kExp2) return exp2(x);
  if constexpr (op == kExpm1) return expm1(x);
  if constexpr (op == kLog) return log(x);
  if constexpr (op == kLog1p) return log1p(x);
  if constexpr (op == kLog2) return log2(x);
  if constexpr (op == kLog10) return log10(x);
  if constexpr (op == kSqrt) return sqrt(x);
  if constexpr (op == kRsqrt) return rsqrt(x);
  if constexpr (op == kReciprocal) return reciprocal(x);
  if constexpr (op == kSin) return sin(x);
  if constexpr (op == kCos) return cos(x);
  if constexpr (op == kTan) return tan(x);
  if constexpr (op == kAsin) return asin(x);
  if constexpr (op == kAcos) return acos(x);
  if constexpr (op == kAtan) return atan(x);
  if constexpr (op == kSinh) return sinh(x);
  if constexpr (op == kCosh) return cosh(x);
  if constexpr (op == kAsinh) return asinh(x);
  if constexpr (op == kAcosh) return acosh(x);
  if constexpr (op == kAtanh) return atanh(x);
  if constexpr (op == kTanh) return tanh(x);
  if constexpr (op == kSigmoid) return sigmoid(x);
  if constexpr (op == kErf) return erf(x);
  if constexpr (op == kFloor) return floor(x);
  if constexpr (op == kCeil) return ceil(x);
  if constexpr (op == kRound) return round(x);
  if constexpr (op == kTrunc) return trunc(x);
  if constexpr (op == kSign) return sign(x);
  if constexpr (op == kRelu) return relu(x);
  if constexpr (op == kGelu) return gelu(x);
  if constexpr (op == kGeluTanh) return gelu_tanh(x);
  if constexpr (op == kSilu) return silu(x);
  if constexpr (op == kHardswish) return hardswish(x);
  if constexpr (op == kHardsigmoid) return hardsigmoid(x);
  if constexpr (op == kSoftplus) return softplus(x);
  if constexpr (op == kMish) return mish(x);
  if constexpr (op == kClamp) return clamp(x, lo, hi);
  return x;
}

}  // namespace npusim::scalar
