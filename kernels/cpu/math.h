// Elementary functions on float vectors, within 2e-7 of the exact value relative to it (about 2
// ulp), subnormals, infinities and NaN included; tests/cpp/test_math.cpp holds each to its bound.
// Owns the formulas of every unary opcode of class "f" and the dispatch over opcodes.
//
// Methods: exponentials reduce the argument by multiples of ln 2 in two parts (Cody and Waite,
// "Software Manual for the Elementary Functions", 1980), logarithms by the exponent field; inverse
// functions by the identities of Abramowitz and Stegun (4.4.28-4.4.34, 4.6.20-4.6.22).
// Trigonometric functions and powers run in double lanes, where plain reduction is exact enough.
// Polynomials are minimax fits made for this file (Lawson's iteration on Chebyshev nodes); each
// says its interval and its largest error relative to the function, coefficients rounded.
//
// Contraction of a*b+c to one rounding is allowed everywhere here: no step relies on its absence.
#pragma once

#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNan = __builtin_nanf("");

// c[0] + x*c[1] + x^2*c[2] + …, by Horner's rule.
template <typename V, typename T, typename... Rest>
inline V polynomial(V x, T first, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return V{} + first;
  } else {
    return polynomial(x, rest...) * x + first;
  }
}

// 2^n for n in [-126, 127].
inline Vec power_of_two(IVec n) {
  return as_float((reinterpret_cast<UVec>(n) + 127) << 23);
}

// x = n*ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^21. Adding 1.5*2^23 rounds to an integer and
// leaves it in the low bits of the sum.
struct ExpParts {
  IVec n;
  Vec r;
};
inline ExpParts reduce_exp(Vec x) {
  constexpr float kShift = 0x1.8p23f;
  const Vec shifted = x * 1.44269504f + kShift;
  const Vec n = shifted - kShift;
  const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  return {difference(reinterpret_cast<IVec>(shifted), reinterpret_cast<IVec>(kShift + Vec{})), r};
}

// 2^kBias e^x, for x whose power 2^(n + kBias) is a normal float: n from -126 - kBias to 127 -
// kBias; 0 for the n before these. One power of two where exp needs two, and no call: for functions
// that take little else.
template <int kBias>
[[gnu::always_inline]] inline Vec exp_within(Vec x) {
  // What rounds to an integer leaves it in the low bits as the exponent field of that power.
  constexpr float kShift = 0x1.8p23f + 127 + kBias;
  const Vec shifted = x * 1.44269504f + kShift;
  const Vec n = shifted - kShift;
  const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  // As in exp_scaled.
  const Vec p = polynomial(r, 1.0f, 1.0f, 0.49999994f, 0.166665152f, 0.041668456f, 0.00836941879f,
                           0.00138131448f);
  return p * as_float(as_bits(shifted) << 23);
}
// 1 + e^-x. Exponentials that are nothing beside 1 are taken for larger ones; infinite ones stay.
[[gnu::always_inline]] inline Vec one_and_exp_of_minus(Vec x) {
  x = greater(broadcast(-89.0f), lesser(broadcast(86.0f), x));
  return 1.0f + 2.0f * exp_within<-1>(-x);
}

// e^x for x <= 0; results below the normal floats are 0.
inline Vec exp_of_nonpositive(Vec x) {
  return exp_within<0>(greater(broadcast(-88.0f), x));
}

// 2^x for x <= 0, as exact as what is rounded to 16 bits needs (3e-6); below the normal floats 0.
[[gnu::always_inline]] inline Vec short_exp2(Vec x) {
  constexpr float kShift = 0x1.8p23f + 127;
  x = greater(broadcast(-127.0f), x);
  const Vec shifted = x + kShift;
  const Vec f = x - (shifted - kShift);
  const Vec p = polynomial(f, 1.0f, 0.693124115f, 0.240241051f, 0.0559072122f, 0.00958277751f);
  return p * as_float(as_bits(shifted) << 23);
}

// v * 2^n for |n| <= 252, correct when the result is subnormal or infinite.
inline Vec scale(Vec v, IVec n) {
  const IVec half = n >> 1;
  return v * power_of_two(half) * power_of_two(difference(n, half));
}

// 2^k * e^x; k is how sinh and cosh keep clear of overflow.
inline Vec exp_scaled(Vec x, int k) {
  x = lesser(broadcast(90.0f), greater(broadcast(-105.0f), x));
  const auto [n, r] = reduce_exp(x);
  // (e^r - 1 - r) / r^2 on |r| < 0.35, error 5e-9.
  const Vec p =
      polynomial(r, 0.49999994f, 0.166665152f, 0.041668456f, 0.00836941879f, 0.00138131448f);
  return scale((r * r * p + r) + 1.0f, difference(n, IVec{} - k));
}
inline Vec exp(Vec x) {
  return exp_scaled(x, 0);
}

inline Vec exp2(Vec x) {
  constexpr float kShift = 0x1.8p23f;
  x = lesser(broadcast(129.0f), greater(broadcast(-151.0f), x));
  const Vec shifted = x + kShift;
  const Vec f = x - (shifted - kShift);
  const IVec n =
      difference(reinterpret_cast<IVec>(shifted), reinterpret_cast<IVec>(kShift + Vec{}));
  // (2^f - 1) / f on |f| < 0.505, error 2e-8.
  const Vec p = polynomial(f, 0.693147182f, 0.240226477f, 0.0555032939f, 0.00961844996f,
                           0.00134001707f, 0.000153523171f);
  return scale(f * p + 1.0f, n);
}

inline Vec expm1(Vec x) {
  const Vec bounded = x < -20.0f ? Vec{} - 20.0f : (x > 89.0f ? Vec{} + 89.0f : x);
  const auto [n, r] = reduce_exp(bounded);
  // (e^r - 1 - r) / r^2 on |r| < 0.35, error 3e-9.
  const Vec p = polynomial(r, 0.5f, 0.166666657f, 0.0416663475f, 0.00833339151f, 0.00139416521f,
                           0.000198459573f);
  // Half of 2^n (e^r - 1) + 2^n - 1, as 2^128 does not exist.
  const Vec half = scale(broadcast(0.5f), n);
  const Vec y = 2.0f * (half * (r * r * p + r) + (half - 0.5f));
  return abs(x) < 0x1p-26f ? x : y;
}

// x = 2^n * (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), for positive finite x.
struct LogParts {
  Vec n, f;
};
inline LogParts reduce_log(Vec x) {
  const IVec subnormal = x < 0x1p-126f;
  const IVec bits = reinterpret_cast<IVec>(subnormal ? x * 0x1p23f : x);
  const IVec n = difference(bits, IVec{} + 0x3F3504F3) >> 23;
  const Vec f = as_float(difference(bits, n << 23)) - 1.0f;
  return {__builtin_convertvector(subnormal ? n - 23 : n, Vec), f};
}
// log(1 + f) - f.
inline Vec log_tail(Vec f) {
  // (log(1 + f) - f + f^2/2) / f^3 on [-0.294, 0.415], error 7e-9.
  const Vec p = polynomial(f, 0.333333313f, -0.250008374f, 0.200012922f, -0.166227654f,
                           0.141996965f, -0.131641865f, 0.127791137f, -0.0764610171f);
  return f * f * (f * p - 0.5f);
}
// n * ln 2 + log(1 + f).
inline Vec join_log(Vec n, Vec f) {
  return n * 0.693359375f + (f + (log_tail(f) + n * -2.12194440e-4f));
}
// A logarithm's value at 0, below, and at infinity and NaN; `y` elsewhere.
inline Vec log_limits(Vec x, Vec y) {
  y = x < kInfinity ? y : x;
  const Vec outside = x == 0.0f ? Vec{} - kInfinity : Vec{} + kNan;
  return x > 0.0f ? y : outside;
}

inline Vec log(Vec x) {
  const auto [n, f] = reduce_log(x);
  return log_limits(x, join_log(n, f));
}
inline Vec log2(Vec x) {
  const auto [n, f] = reduce_log(x);
  return log_limits(x, (f + log_tail(f)) * 1.44269504f + n);
}
inline Vec log10(Vec x) {
  const auto [n, f] = reduce_log(x);
  const Vec fraction = (f + log_tail(f)) * 0.434294482f + n * 4.605039e-6f;
  return log_limits(x, n * 0.301025391f + fraction);
}
inline Vec log1p(Vec x) {
  const Vec u = 1.0f + x;
  // What rounding u lost, exactly; from 2^24 on it no longer matters.
  const Vec lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  const auto [n, f] = reduce_log(u);
  const IVec shift = __builtin_convertvector(n, IVec);
  const Vec unit = power_of_two(difference(IVec{}, n < 26.0f ? shift : IVec{}));
  const Vec rest = x < 0x1p24f ? lost * unit : Vec{};
  const Vec y = log_limits(u, join_log(n, f + rest));
  return x == 0.0f ? x : y;
}

// Calls f on the two halves of x in double precision.
template <typename F>
inline Vec in_doubles(Vec x, F f) {
  using Half = VectorOf<float, kDoubles>;
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < kLanes; i += kDoubles) {
    auto* half = reinterpret_cast<Half::unaligned*>(lanes + i);
    *half = __builtin_convertvector(
        f(__builtin_convertvector(static_cast<typename Half::type>(*half), DVec)),
        typename Half::type);
  }
  return load(lanes);
}

// sin and cos of x = q*pi/2 + r, |r| <= pi/4, by their values at r. pi/2 is split so that q times
// its first part is exact up to q = 2^20.
struct SinCos {
  DVec sin, cos;
};
inline constexpr float kTrigLimit = 0x1p20f;
inline SinCos sin_cos(DVec x) {
  constexpr double kShift = 0x1.8p52;
  const DVec shifted = x * 0x1.45f306dc9c883p-1 + kShift;
  const DVec q = shifted - kShift;
  const LVec quadrant = reinterpret_cast<LVec>(shifted) & 3;
  const DVec r = (x - q * 0x1.921fb544p0) - q * 0x1.0b4611a626331p-34;
  const DVec z = r * r;
  // (sin(r)/r - 1)/z and (cos(r) - 1 + z/2)/z^2 on z < 0.617; errors 5e-12 and 1e-13.
  const DVec s = r + r * z *
                         polynomial(z, -0.16666666640776182, 0.0083333293024106542,
                                    -0.00019839311483567173, 2.7181141023571286e-06);
  const DVec c = 1.0 + z * (z * polynomial(z, 0.041666666619453681, -0.0013888883496853942,
                                           2.4799459308914654e-05, -2.7205684560784255e-07) -
                            0.5);
  const DVec sin = (quadrant & 1) != 0 ? c : s;
  const DVec cos = (quadrant & 1) != 0 ? s : c;
  return {(quadrant & 2) != 0 ? -sin : sin, ((quadrant + 1) & 2) != 0 ? -cos : cos};
}
// Arguments that large are rare: the C library reduces them, one by one.
template <typename F>
inline Vec fix_large(Vec x, Vec y, F f) {
  const IVec large = abs(x) > kTrigLimit;
  if (__builtin_expect(any(large), 0)) {
    for (int i = 0; i < kLanes; ++i) {
      if (large[i]) y[i] = static_cast<float>(f(static_cast<double>(x[i])));
    }
  }
  return y;
}
inline Vec sin(Vec x) {
  const Vec y = in_doubles(x, [](DVec d) { return sin_cos(d).sin; });
  return fix_large(x, x == 0.0f ? x : y, [](double d) { return __builtin_sin(d); });
}
inline Vec cos(Vec x) {
  const Vec y = in_doubles(x, [](DVec d) { return sin_cos(d).cos; });
  return fix_large(x, y, [](double d) { return __builtin_cos(d); });
}
inline Vec tan(Vec x) {
  const Vec y = in_doubles(x, [](DVec d) {
    const SinCos at = sin_cos(d);
    return at.sin / at.cos;
  });
  return fix_large(x, x == 0.0f ? x : y, [](double d) { return __builtin_tan(d); });
}

// asin on |x| <= 5/8.
inline Vec asin_core(Vec x) {
  const Vec z = x * x;
  // (asin(x)/x - 1)/z on |x| < 0.63, error 5e-9.
  return x + x * z *
                 polynomial(z, 0.166666925f, 0.0749836415f, 0.0449809358f, 0.0271135736f,
                            0.0388564058f, -0.0260875039f, 0.0659410283f);
}
inline constexpr float kPi = 3.14159274f, kHalfPi = 1.57079637f;
inline constexpr float kHalfPiLow = -4.37113883e-8f;  // what rounding pi/2 left out
inline Vec asin(Vec x) {
  const Vec a = abs(x);
  const Vec far = kHalfPi - (2.0f * asin_core(sqrt((1.0f - a) * 0.5f)) - kHalfPiLow);
  return a <= 0.625f ? asin_core(x) : copysign(far, x);
}
inline Vec acos(Vec x) {
  const Vec a = abs(x);
  const Vec far = 2.0f * asin_core(sqrt((1.0f - a) * 0.5f));
  const Vec near = kHalfPi - (asin_core(x) - kHalfPiLow);
  const Vec left = 2.0f * kHalfPi - (far - 2.0f * kHalfPiLow);
  return a <= 0.5f ? near : (x > 0.0f ? far : left);
}

// atan of x >= 0: directly below tan(pi/8), else about pi/4 or pi/2.
inline Vec atan_positive(Vec x) {
  const IVec middle = x > 0.414213562f, far = x > 2.41421356f;
  const Vec t = far ? -1.0f / x : (middle ? (x - 1.0f) / (x + 1.0f) : x);
  const Vec base = far ? Vec{} + kHalfPi : (middle ? Vec{} + kHalfPi / 2 : Vec{});
  const Vec low = far ? Vec{} + kHalfPiLow : (middle ? Vec{} + kHalfPiLow / 2 : Vec{});
  const Vec z = t * t;
  // (atan(t)/t - 1)/z on t < tan(pi/8), error 3e-9.
  const Vec p =
      polynomial(z, -0.333333164f, 0.19998461f, -0.142433107f, 0.105920777f, -0.0607360974f);
  return base + (t + (t * z * p + low));
}
inline Vec atan(Vec x) {
  return copysign(atan_positive(abs(x)), x);
}
inline Vec atan2(Vec y, Vec x) {
  const Vec ax = abs(x), ay = abs(y);
  const IVec steep = ay > ax;
  const Vec small = steep ? ax : ay, large = steep ? ay : ax;
  Vec ratio = small / large;
  ratio = large == 0.0f ? Vec{} : ratio;
  ratio = small == kInfinity ? Vec{} + 1.0f : ratio;
  Vec angle = atan_positive(ratio);
  angle = steep ? kHalfPi - (angle - kHalfPiLow) : angle;
  const IVec left = reinterpret_cast<IVec>(x) < 0;
  angle = left ? 2.0f * kHalfPi - (angle - 2.0f * kHalfPiLow) : angle;
  // NaN of either operand; the sum would be the wrong answer for two infinities.
  const Vec y_or_nan = x != x ? x : y;
  return y_or_nan != y_or_nan ? y_or_nan : copysign(angle, y);
}

inline Vec sinh(Vec x) {
  const Vec a = abs(x), half = exp_scaled(a, -1), z = x * x;
  // (sinh(x)/x - 1)/z on z < 1, error 5e-9.
  const Vec near =
      x + x * z * polynomial(z, 0.166666672f, 0.0083333496f, 0.000198361595f, 2.81695134e-06f);
  return a < 1.0f ? near : copysign(half - 0.25f / half, x);
}
inline Vec cosh(Vec x) {
  const Vec half = exp_scaled(abs(x), -1);
  return half + 0.25f / half;
}
inline Vec tanh(Vec x) {
  const Vec a = abs(x), z = x * x;
  // (tanh(x)/x - 1)/z on |x| < 0.75, error 8e-9.
  const Vec near = x + x * z *
                           polynomial(z, -0.333333164f, 0.133326948f, -0.0538927242f, 0.0214520339f,
                                      -0.00765725458f, 0.00173693546f);
  const Vec far = 1.0f - 2.0f / (exp_within<0>(lesser(broadcast(20.0f), a + a)) + 1.0f);
  return copysign(a < 0.625f ? near : far, x);
}
inline Vec asinh(Vec x) {
  const Vec a = abs(x), square = a * a;
  const Vec near = log1p(a + square / (1.0f + sqrt(square + 1.0f)));
  const Vec far = log(a) + 0.693147182f;
  return copysign(a < 0x1p40f ? near : far, x);
}
inline Vec acosh(Vec x) {
  const Vec t = x - 1.0f;
  const Vec near = log1p(t + sqrt(t * (t + 2.0f)));
  const Vec far = log(x) + 0.693147182f;
  return x < 1.0f ? Vec{} + kNan : (x < 0x1p40f ? near : far);
}
inline Vec atanh(Vec x) {
  const Vec a = abs(x);
  return copysign(0.5f * log1p(2.0f * a / (1.0f - a)), x);
}

inline Vec erf(Vec x) {
  const Vec a = abs(x), z = x * x;
  // erf(x)/x - 1 on z < 1, error 5e-9.
  const Vec near = x + x * polynomial(z, 0.128379166f, -0.37612626f, 0.112835854f, -0.026853811f,
                                      0.00518832728f, -0.000801019138f, 7.85385419e-05f);
  // log(1 - erf(x))/x on [1, 4], where erf reaches 1; error 8e-9.
  const Vec b = lesser(broadcast(4.0f), a);
  const Vec q = polynomial(b, -1.12859952f, -0.63541013f, -0.105669051f, 0.0230916291f,
                           -0.00318200816f, 0.000138747011f, 2.8435883e-05f, -3.55704788e-06f);
  return a < 1.0f ? near : copysign(1.0f - exp_within<0>(b * q), x);
}

inline Vec rsqrt(Vec x) {
  return 1.0f / sqrt(x);
}
inline Vec sigmoid(Vec x) {
  return 1.0f / one_and_exp_of_minus(x);
}
inline Vec silu(Vec x) {
  return x / one_and_exp_of_minus(x);
}
inline Vec relu(Vec x) {
  return greater(Vec{}, x);
}
inline Vec sign(Vec x) {
  const Vec one = Vec{} + 1.0f;
  return x > 0.0f ? one : (x < 0.0f ? -one : Vec{});
}
// x * Phi(x) by way of the tail of the normal distribution, Phi(-|x|): one exponential, and no
// cancellation for negative x.
inline Vec gelu(Vec x) {
  const Vec a = abs(x);
  // log(2 Phi(-a)) / a on (0, 5.8]; what its error makes of gelu stays below 5e-9. Beyond, the
  // leading term will do: the tail is far below the last digit of anything near it. Even and odd
  // powers apart, so that half as many steps wait for each other.
  const Vec z = a * a;
  const Vec q =
      a * polynomial(z, -0.318309337f, 0.00478622317f, -0.000218391273f, -9.71761438e-06f,
                     -3.15936326e-08f) +
      polynomial(z, -0.797884583f, -0.036338035f, 3.6014706e-05f, 6.25631583e-05f, 8.41069721e-07f);
  const Vec power = a > 5.8f ? -0.5f * z - 2.0f : a * q;
  const Vec tail = 0x1p-33f * exp_within<32>(greater(broadcast(-105.0f), power));
  return x * (x > 0.0f ? 1.0f - tail : tail);
}
// 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3).
inline Vec gelu_tanh(Vec x) {
  const Vec u = 0.797884561f * (x + 0.044715f * (x * x * x));
  return x / one_and_exp_of_minus(2.0f * u);
}
inline Vec clamp_six(Vec x) {
  return lesser(broadcast(6.0f), greater(Vec{}, x));
}
inline Vec hardsigmoid(Vec x) {
  return clamp_six(x + 3.0f) * 0.166666672f;
}
inline Vec hardswish(Vec x) {
  return x * (clamp_six(x + 3.0f) * 0.166666672f);
}
inline Vec softplus(Vec x) {
  return x > 20.0f ? x : log1p(exp(x));
}
// x tanh(log(1 + e^x)) = x w / (w + 2) with w = e^x (e^x + 2).
inline Vec mish(Vec x) {
  const Vec e = exp(x > 20.0f ? Vec{} + 20.0f : x), w = e * (e + 2.0f);
  return x > 20.0f ? x : x * (w / (w + 2.0f));
}

// log2 |x| of positive lanes and 2^x, good to 1e-11: enough for a float power of any size.
inline DVec log2_wide(DVec x) {
  const LVec bits = reinterpret_cast<LVec>(x);
  const LVec n = (bits - 0x3FE6A09E667F3BCD) >> 52;
  const DVec m = reinterpret_cast<DVec>(bits - (n << 52));
  const DVec s = (m - 1.0) / (m + 1.0), z = s * s;
  // log2(m)/s on sqrt(1/2) <= m < sqrt(2), error 3e-14.
  const DVec p = polynomial(z, 2.8853900817778451, 0.96179669412312785, 0.57707793930247142,
                            0.41220958256996959, 0.3198913683916686, 0.28311524716082281);
  // n as a double without a 64-bit conversion, which older instruction sets lack.
  const DVec whole = reinterpret_cast<DVec>(n + 0x4338000000000000) - 0x1.8p52;
  return s * p + whole;
}
inline DVec exp2_wide(DVec x) {
  x = x < -1000.0 ? DVec{} - 1000.0 : (x > 1000.0 ? DVec{} + 1000.0 : x);
  const DVec shifted = x + 0x1.8p52;
  const DVec f = x - (shifted - 0x1.8p52);
  const LVec n = reinterpret_cast<LVec>(shifted) - 0x4338000000000000;
  // 2^f on |f| <= 1/2, error 4e-11.
  const DVec p = polynomial(f, 0.9999999999616811, 0.69314718072844195, 0.24022651198156811,
                            0.055504103534666539, 0.0096180272538418984, 0.0013333922548256043,
                            0.00015469291087398529, 1.5201925114838311e-05);
  return p * reinterpret_cast<DVec>((n + 1023) << 52);
}
inline Vec pow(Vec x, Vec y) {
  using Half = VectorOf<float, kDoubles>;
  const Vec a = abs(x);
  float base[kLanes], power[kLanes];
  store(base, a);
  store(power, y);
  for (int i = 0; i < kLanes; i += kDoubles) {
    auto* b = reinterpret_cast<Half::unaligned*>(base + i);
    const auto* e = reinterpret_cast<const Half::unaligned*>(power + i);
    const DVec wide = __builtin_convertvector(static_cast<typename Half::type>(*b), DVec);
    const DVec exponent = __builtin_convertvector(static_cast<typename Half::type>(*e), DVec);
    const DVec result = exp2_wide(exponent * log2_wide(wide));
    *b = __builtin_convertvector(result, typename Half::type);
  }
  Vec r = load(base);
  const Vec zero = Vec{}, one = zero + 1.0f, infinity = zero + kInfinity;
  // Bases 0 and infinity, then exponents of infinity: 0, 1 or infinity by the sides of 1 and 0.
  r = a == 0.0f ? (y > 0.0f ? zero : infinity) : r;
  r = a == kInfinity ? (y > 0.0f ? infinity : zero) : r;
  r = abs(y) == kInfinity ? (a == 1.0f ? one : (((a > 1.0f) ^ (y < 0.0f)) ? infinity : zero)) : r;
  // A negative base needs an integer exponent and takes its parity for the sign.
  const Vec half = y * 0.5f;
  const IVec integer = trunc(y) == y, odd = integer & (trunc(half) != half);
  const IVec negative = reinterpret_cast<IVec>(x) < 0;
  r = (negative & odd) ? -r : r;
  r = ((x < 0.0f) & ~integer & (a < kInfinity)) ? zero + kNan : r;
  r = ((x != x) | (y != y)) ? x + y : r;
  return ((x == 1.0f) | (y == 0.0f)) ? one : r;
}

// Calls f with the function of a unary opcode of class "f" whose result is a float; false if the
// opcode is not one. The switch runs once, so a loop inside f is specialised to the function.
template <typename F>
inline bool with_unary(abi::Opcode op, F&& f) {
  using enum abi::Opcode;
  switch (op) {
    case kCopy:
      return f([](Vec x) -> Vec { return x; }), true;
    case kNeg:
      return f([](Vec x) -> Vec { return -x; }), true;
    case kAbs:
      return f([](Vec x) -> Vec { return abs(x); }), true;
    case kExp:
      return f([](Vec x) -> Vec { return exp(x); }), true;
    case kExp2:
      return f([](Vec x) -> Vec { return exp2(x); }), true;
    case kExpm1:
      return f([](Vec x) -> Vec { return expm1(x); }), true;
    case kLog:
      return f([](Vec x) -> Vec { return log(x); }), true;
    case kLog1p:
      return f([](Vec x) -> Vec { return log1p(x); }), true;
    case kLog2:
      return f([](Vec x) -> Vec { return log2(x); }), true;
    case kLog10:
      return f([](Vec x) -> Vec { return log10(x); }), true;
    case kSqrt:
      return f([](Vec x) -> Vec { return sqrt(x); }), true;
    case kRsqrt:
      return f([](Vec x) -> Vec { return rsqrt(x); }), true;
    case kReciprocal:
      return f([](Vec x) -> Vec { return 1.0f / x; }), true;
    case kSin:
      return f([](Vec x) -> Vec { return sin(x); }), true;
    case kCos:
      return f([](Vec x) -> Vec { return cos(x); }), true;
    case kTan:
      return f([](Vec x) -> Vec { return tan(x); }), true;
    case kAsin:
      return f([](Vec x) -> Vec { return asin(x); }), true;
    case kAcos:
      return f([](Vec x) -> Vec { return acos(x); }), true;
    case kAtan:
      return f([](Vec x) -> Vec { return atan(x); }), true;
    case kSinh:
      return f([](Vec x) -> Vec { return sinh(x); }), true;
    case kCosh:
      return f([](Vec x) -> Vec { return cosh(x); }), true;
    case kAsinh:
      return f([](Vec x) -> Vec { return asinh(x); }), true;
    case kAcosh:
      return f([](Vec x) -> Vec { return acosh(x); }), true;
    case kAtanh:
      return f([](Vec x) -> Vec { return atanh(x); }), true;
    case kTanh:
      return f([](Vec x) -> Vec { return tanh(x); }), true;
    case kSigmoid:
      return f([](Vec x) -> Vec { return sigmoid(x); }), true;
    case kErf:
      return f([](Vec x) -> Vec { return erf(x); }), true;
    case kFloor:
      return f([](Vec x) -> Vec { return floor(x); }), true;
    case kCeil:
      return f([](Vec x) -> Vec { return ceil(x); }), true;
    case kRound:
      return f([](Vec x) -> Vec { return round_even(x); }), true;
    case kTrunc:
      return f([](Vec x) -> Vec { return trunc(x); }), true;
    case kSign:
      return f([](Vec x) -> Vec { return sign(x); }), true;
    case kRelu:
      return f([](Vec x) -> Vec { return relu(x); }), true;
    case kGelu:
      return f([](Vec x) -> Vec { return gelu(x); }), true;
    case kGeluTanh:
      return f([](Vec x) -> Vec { return gelu_tanh(x); }), true;
    case kSilu:
      return f([](Vec x) -> Vec { return silu(x); }), true;
    case kHardswish:
      return f([](Vec x) -> Vec { return hardswish(x); }), true;
    case kHardsigmoid:
      return f([](Vec x) -> Vec { return hardsigmoid(x); }), true;
    case kSoftplus:
      return f([](Vec x) -> Vec { return softplus(x); }), true;
    case kMish:
      return f([](Vec x) -> Vec { return mish(x); }), true;
    default:
      return false;
  }
}

// One unary float opcode on one vector; the identity for any other code.
inline Vec apply_unary(abi::Opcode op, Vec x) {
  Vec y = x;
  with_unary(op, [&](auto f) { y = f(x); });
  return y;
}

}  // namespace npusim::cpu::NPUSIM_ISA
