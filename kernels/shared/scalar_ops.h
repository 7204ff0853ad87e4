// The opcodes of abi/scalar.py as functions of the same names, on one float, double or int64_t
// each: what all GPUs share, C++14 without a library. Owns PyTorch's rules for division, remainder,
// powers and shifts; integers wrap. Tests and comparisons return 0 or 1. A device's header stands
// before it, with its real functions, conversions and NPUSIM_GLOBAL, the address space of its
// memory.
#pragma once

namespace npusim {
namespace scalar {

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
  return -x;
}
inline int64_t neg(int64_t x) {
  return wrap(0 - bits(x));
}
inline int64_t abs(int64_t x) {
  return x < 0 ? neg(x) : x;
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
  return abs(x) == infinity<C>();
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
inline int64_t to_i(C x) {
  return decode<int64_t>(x);
}
template <typename C>
inline int64_t to_i32(C x) {
  return to_integer32(x);
}
template <typename C>
inline int64_t to_bool(C x) {
  return x != 0;
}

template <typename C>
inline C add(C a, C b) {
  return a + b;
}
inline int64_t add(int64_t a, int64_t b) {
  return wrap(bits(a) + bits(b));
}
template <typename C>
inline C sub(C a, C b) {
  return a - b;
}
inline int64_t sub(int64_t a, int64_t b) {
  return wrap(bits(a) - bits(b));
}
template <typename C>
inline C mul(C a, C b) {
  return a * b;
}
inline int64_t mul(int64_t a, int64_t b) {
  return wrap(bits(a) * bits(b));
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
inline bool divides(int64_t a, int64_t b, NPUSIM_GLOBAL Failure* failure) {
  if (b == 0) report(failure, kDivisionByZero, a, 0);
  return b != 0;
}
inline int64_t div_trunc(int64_t a, int64_t b, NPUSIM_GLOBAL Failure* failure) {
  if (!divides(a, b, failure)) return 0;
  return b == -1 ? neg(a) : a / b;
}
inline int64_t fmod(int64_t a, int64_t b, NPUSIM_GLOBAL Failure* failure) {
  if (!divides(a, b, failure)) return 0;
  return b == -1 ? 0 : a % b;
}
inline int64_t div_floor(int64_t a, int64_t b, NPUSIM_GLOBAL Failure* failure) {
  if (!divides(a, b, failure)) return 0;
  const int64_t quotient = b == -1 ? neg(a) : a / b, mod = b == -1 ? 0 : a % b;
  return quotient - (mod != 0 && (b < 0) != (mod < 0));
}
inline int64_t remainder(int64_t a, int64_t b, NPUSIM_GLOBAL Failure* failure) {
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
  constexpr abi::Opcode op = static_cast<abi::Opcode>(kOp);
  if (op == abi::Opcode::kNeg) return neg(x);
  if (op == abi::Opcode::kAbs) return abs(x);
  if (op == abi::Opcode::kExp) return exp(x);
  if (op == abi::Opcode::kExp2) return exp2(x);
  if (op == abi::Opcode::kExpm1) return expm1(x);
  if (op == abi::Opcode::kLog) return log(x);
  if (op == abi::Opcode::kLog1p) return log1p(x);
  if (op == abi::Opcode::kLog2) return log2(x);
  if (op == abi::Opcode::kLog10) return log10(x);
  if (op == abi::Opcode::kSqrt) return sqrt(x);
  if (op == abi::Opcode::kRsqrt) return rsqrt(x);
  if (op == abi::Opcode::kReciprocal) return reciprocal(x);
  if (op == abi::Opcode::kSin) return sin(x);
  if (op == abi::Opcode::kCos) return cos(x);
  if (op == abi::Opcode::kTan) return tan(x);
  if (op == abi::Opcode::kAsin) return asin(x);
  if (op == abi::Opcode::kAcos) return acos(x);
  if (op == abi::Opcode::kAtan) return atan(x);
  if (op == abi::Opcode::kSinh) return sinh(x);
  if (op == abi::Opcode::kCosh) return cosh(x);
  if (op == abi::Opcode::kAsinh) return asinh(x);
  if (op == abi::Opcode::kAcosh) return acosh(x);
  if (op == abi::Opcode::kAtanh) return atanh(x);
  if (op == abi::Opcode::kTanh) return tanh(x);
  if (op == abi::Opcode::kSigmoid) return sigmoid(x);
  if (op == abi::Opcode::kErf) return erf(x);
  if (op == abi::Opcode::kFloor) return floor(x);
  if (op == abi::Opcode::kCeil) return ceil(x);
  if (op == abi::Opcode::kRound) return round(x);
  if (op == abi::Opcode::kTrunc) return trunc(x);
  if (op == abi::Opcode::kSign) return sign(x);
  if (op == abi::Opcode::kRelu) return relu(x);
  if (op == abi::Opcode::kGelu) return gelu(x);
  if (op == abi::Opcode::kGeluTanh) return gelu_tanh(x);
  if (op == abi::Opcode::kSilu) return silu(x);
  if (op == abi::Opcode::kHardswish) return hardswish(x);
  if (op == abi::Opcode::kHardsigmoid) return hardsigmoid(x);
  if (op == abi::Opcode::kSoftplus) return softplus(x);
  if (op == abi::Opcode::kMish) return mish(x);
  if (op == abi::Opcode::kClamp) return clamp(x, lo, hi);
  return x;
}

}  // namespace scalar
}  // namespace npusim
