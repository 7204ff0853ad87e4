// The opcodes of python/npusim/abi/scalar.py on one double or one int64: classes "d" and "i",
// where exactness matters more than speed. Owns PyTorch's rules for division, remainder, powers
// and shifts of integers; overflow wraps. Class "f" is in math.h, on vectors.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel.h"

namespace npusim::cpu::NPUSIM_ISA {

// NaN wins; of two zeros the first.
inline double maximum(double a, double b) {
  return b > a || b != b ? b : a;
}
inline double minimum(double a, double b) {
  return b < a || b != b ? b : a;
}
inline int64_t maximum(int64_t a, int64_t b) {
  return a > b ? a : b;
}
inline int64_t minimum(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// The remainder with the divisor's sign, from the one with the dividend's.
template <typename Real>
inline Real remainder_of(Real mod, Real b) {
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}
// floor(a / b) by way of the remainder, which stays right where a / b rounds up to an integer.
template <typename Real>
inline Real floor_divide(Real a, Real b, Real mod) {
  if (b == 0) return a / b;
  Real quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
  if (quotient == 0) return static_cast<Real>(__builtin_copysign(0.0, a / b));
  const Real whole = static_cast<Real>(__builtin_floor(quotient));
  return quotient - whole > Real{0.5} ? whole + 1 : whole;
}

inline uint64_t to_unsigned(int64_t x) {
  return static_cast<uint64_t>(x);
}
inline int64_t wrap(uint64_t x) {
  return static_cast<int64_t>(x);
}
inline int64_t wrapping_negate(int64_t x) {
  return wrap(0 - to_unsigned(x));
}

// Quotient and remainder toward zero; b is not 0. The one quotient that overflows wraps.
inline int64_t truncated_quotient(int64_t a, int64_t b) {
  return b == -1 ? wrapping_negate(a) : a / b;
}
inline int64_t truncated_remainder(int64_t a, int64_t b) {
  return b == -1 ? 0 : a % b;
}

inline int64_t integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {  // 1/base, truncated
    if (base == 1) return 1;
    if (base == -1) return exponent % 2 ? -1 : 1;
    return 0;
  }
  uint64_t power = 1, square = to_unsigned(base);
  for (; exponent; exponent >>= 1, square *= square) power *= exponent & 1 ? square : 1;
  return wrap(power);
}

inline double sigmoid(double x) {
  return 1 / (1 + __builtin_exp(-x));
}
inline double clamp_six(double x) {
  return x < 0 ? 0 : (x > 6 ? 6 : x);
}
inline double gelu_tanh(double x) {
  const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + __builtin_tanh(u));
}
inline double mish(double x) {
  return x > 20 ? x : x * __builtin_tanh(__builtin_log1p(__builtin_exp(x)));
}

// A unary opcode of class "d" whose result is of class "d".
inline double apply_unary(abi::Opcode op, double x) {
  using enum abi::Opcode;
  switch (op) {
    case kNeg:
      return -x;
    case kAbs:
      return __builtin_fabs(x);
    case kExp:
      return __builtin_exp(x);
    case kExp2:
      return __builtin_exp2(x);
    case kExpm1:
      return __builtin_expm1(x);
    case kLog:
      return __builtin_log(x);
    case kLog1p:
      return __builtin_log1p(x);
    case kLog2:
      return __builtin_log2(x);
    case kLog10:
      return __builtin_log10(x);
    case kSqrt:
      return __builtin_sqrt(x);
    case kRsqrt:
      return 1 / __builtin_sqrt(x);
    case kReciprocal:
      return 1 / x;
    case kSin:
      return __builtin_sin(x);
    case kCos:
      return __builtin_cos(x);
    case kTan:
      return __builtin_tan(x);
    case kAsin:
      return __builtin_asin(x);
    case kAcos:
      return __builtin_acos(x);
    case kAtan:
      return __builtin_atan(x);
    case kSinh:
      return __builtin_sinh(x);
    case kCosh:
      return __builtin_cosh(x);
    case kAsinh:
      return __builtin_asinh(x);
    case kAcosh:
      return __builtin_acosh(x);
    case kAtanh:
      return __builtin_atanh(x);
    case kTanh:
      return __builtin_tanh(x);
    case kSigmoid:
      return sigmoid(x);
    case kErf:
      return __builtin_erf(x);
    case kFloor:
      return __builtin_floor(x);
    case kCeil:
      return __builtin_ceil(x);
    case kRound:
      return __builtin_rint(x);
    case kTrunc:
      return __builtin_trunc(x);
    case kSign:
      return (x > 0) - (x < 0);
    case kRelu:
      return x < 0 ? 0 : x;
    case kGelu:
      return 0.5 * x * (1 + __builtin_erf(x * 0.70710678118654752440));
    case kGeluTanh:
      return gelu_tanh(x);
    case kSilu:
      return x / (1 + __builtin_exp(-x));
    case kHardswish:
      return x * (clamp_six(x + 3) / 6);
    case kHardsigmoid:
      return clamp_six(x + 3) / 6;
    case kSoftplus:
      return x > 20 ? x : __builtin_log1p(__builtin_exp(x));
    case kMish:
      return mish(x);
    default:
      return x;
  }
}

// A unary opcode of class "i" whose result is of class "i".
inline int64_t apply_unary(abi::Opcode op, int64_t x) {
  using enum abi::Opcode;
  switch (op) {
    case kNeg:
      return wrapping_negate(x);
    case kAbs:
      return x < 0 ? wrapping_negate(x) : x;
    case kSign:
      return (x > 0) - (x < 0);
    case kRelu:
      return x < 0 ? 0 : x;
    case kBitwiseNot:
      return ~x;
    default:
      return x;
  }
}

// A binary opcode whose result is of its operands' class. `Failure` learns of divisions by zero.
inline double apply_binary(abi::Opcode op, double a, double b, Failure*) {
  using enum abi::Opcode;
  switch (op) {
    case kAdd:
      return a + b;
    case kSub:
      return a - b;
    case kMul:
      return a * b;
    case kDiv:
      return a / b;
    case kDivTrunc:
      return __builtin_trunc(a / b);
    case kDivFloor:
      return floor_divide(a, b, __builtin_fmod(a, b));
    case kRemainder:
      return remainder_of(__builtin_fmod(a, b), b);
    case kFmod:
      return __builtin_fmod(a, b);
    case kPow:
      return __builtin_pow(a, b);
    case kMaximum:
      return maximum(a, b);
    case kMinimum:
      return minimum(a, b);
    case kAtan2:
      return __builtin_atan2(a, b);
    default:
      return a;
  }
}

inline int64_t apply_division(abi::Opcode op, int64_t a, int64_t b, Failure* failure) {
  if (b == 0) {
    failure->report("an integer is divided by zero", a, 0);
    return 0;
  }
  const int64_t mod = truncated_remainder(a, b);
  const bool opposite = mod != 0 && (b < 0) != (mod < 0);
  switch (op) {
    case abi::Opcode::kDivTrunc:
      return truncated_quotient(a, b);
    case abi::Opcode::kDivFloor:
      return truncated_quotient(a, b) - opposite;
    case abi::Opcode::kRemainder:
      return opposite ? mod + b : mod;
    default:
      return mod;
  }
}

inline int64_t apply_binary(abi::Opcode op, int64_t a, int64_t b, Failure* failure) {
  using enum abi::Opcode;
  const bool shifts = b >= 0 && b < 64;
  switch (op) {
    case kAdd:
      return wrap(to_unsigned(a) + to_unsigned(b));
    case kSub:
      return wrap(to_unsigned(a) - to_unsigned(b));
    case kMul:
      return wrap(to_unsigned(a) * to_unsigned(b));
    case kDivTrunc:
    case kDivFloor:
    case kRemainder:
    case kFmod:
      return apply_division(op, a, b, failure);
    case kPow:
      return integer_power(a, b);
    case kMaximum:
      return maximum(a, b);
    case kMinimum:
      return minimum(a, b);
    case kBitwiseAnd:
      return a & b;
    case kBitwiseOr:
      return a | b;
    case kBitwiseXor:
      return a ^ b;
    case kShiftLeft:
      return shifts ? wrap(to_unsigned(a) << b) : 0;
    case kShiftRight:
      return a >> (shifts ? b : 63);
    default:
      return a;
  }
}

// A comparison or logical operation: 0 or 1.
template <typename T>
inline int64_t apply_relation(abi::Opcode op, T a, T b) {
  using enum abi::Opcode;
  switch (op) {
    case kEq:
      return a == b;
    case kNe:
      return a != b;
    case kLt:
      return a < b;
    case kLe:
      return a <= b;
    case kGt:
      return a > b;
    case kGe:
      return a >= b;
    case kLogicalAnd:
      return a != 0 && b != 0;
    case kLogicalOr:
      return a != 0 || b != 0;
    default:
      return (a != 0) != (b != 0);
  }
}

// A unary test: 0 or 1.
template <typename T>
inline int64_t apply_test(abi::Opcode op, T x) {
  switch (op) {
    case abi::Opcode::kIsnan:
      return x != x;
    case abi::Opcode::kIsinf:
      return x == x && x - x != 0;
    case abi::Opcode::kLogicalNot:
      return x == 0;
    default:
      return x != 0;
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
