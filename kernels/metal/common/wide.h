// Numbers for running sums and products where other devices have double: the sum of two floats, 48
// bits, with an exponent of their own, so that nothing overflows on the way (Dekker, "A
// floating-point technique for extending the available precision", 1971).
#pragma once
#include "kernels/metal/common/scalar_ops.h"

namespace npusim {

// (high + low) * 2^(64 * scale), with high the float nearest to high + low, and its magnitude in
// [2^-32, 2^32) but for zeros, infinities and NaN.
struct Wide {
  float high;
  float low;
  int32_t scale;
};

constant constexpr int32_t kZeroScale = -(1 << 28);  // below all numbers
constant constexpr int32_t kInfiniteScale = 1 << 28;
constant constexpr float kUp = 18446744073709551616.0f;     // 2^64
constant constexpr float kDown = 5.42101086242752217e-20f;  // 2^-64
constant constexpr float kMost = 4294967296.0f;             // 2^32
constant constexpr float kLeast = 2.3283064365386963e-10f;  // 2^-32

inline Wide scaled(float high, float low, int32_t scale) {
  if (!(metal::precise::fabs(high) < INFINITY)) return {high, 0.0f, kInfiniteScale};
  while (metal::precise::fabs(high) >= kMost) high *= kDown, low *= kDown, ++scale;
  while (metal::precise::fabs(high) < kLeast && high != 0.0f) high *= kUp, low *= kUp, --scale;
  return high == 0.0f ? Wide{high, 0.0f, kZeroScale} : Wide{high, low, scale};
}
// Of two floats, the second smaller.
inline Wide normalised(float high, float low, int32_t scale) {
  const float sum = high + low;
  return scaled(sum, low - (sum - high), scale);
}

inline Wide wide_of(float x) {
  return scaled(x, 0.0f, 0);
}

// The sum of two floats, and what rounding took from it (Knuth).
inline float sum_error(float a, float b, float sum) {
  const float part = sum - a;
  return (a - (sum - part)) + (b - part);
}

// a + b, where a's scale is not below b's.
inline Wide sum_aligned(Wide a, Wide b) {
  const int32_t apart = a.scale - b.scale;
  if (apart > 0) {  // by two and more, b is below the last bit of a
    const float by = apart == 1 ? kDown : 0.0f;
    if (a.scale < kInfiniteScale) b.high *= by, b.low *= by;
  }
  const float sum = a.high + b.high;
  if (!(metal::precise::fabs(sum) < INFINITY)) return {sum, 0.0f, kInfiniteScale};
  return normalised(sum, sum_error(a.high, b.high, sum) + (a.low + b.low), a.scale);
}
inline Wide operator+(Wide a, Wide b) {
  return a.scale < b.scale ? sum_aligned(b, a) : sum_aligned(a, b);
}
inline Wide operator-(Wide a) {
  return {-a.high, -a.low, a.scale};
}
inline Wide operator*(Wide a, Wide b) {
  const float product = a.high * b.high;
  if (product == 0.0f) return {product, 0.0f, kZeroScale};
  if (!(metal::precise::fabs(product) < INFINITY)) return {product, 0.0f, kInfiniteScale};
  const float error = metal::precise::fma(a.high, b.high, -product);
  return normalised(product, error + (a.high * b.low + a.low * b.high), a.scale + b.scale);
}
inline Wide operator/(Wide a, Wide b) {
  const float quotient = a.high / b.high;
  if (quotient == 0.0f) return {quotient, 0.0f, kZeroScale};
  if (!(metal::precise::fabs(quotient) < INFINITY)) return {quotient, 0.0f, kInfiniteScale};
  const float rest = metal::precise::fma(-quotient, b.high, a.high);
  return normalised(quotient, (rest - quotient * b.low + a.low) / b.high, a.scale - b.scale);
}

// An integer, of which the 48 highest bits stay.
inline Wide wide_of(int64_t x) {
  const float high = static_cast<float>(x / (int64_t{1} << 40)) * 1099511627776.0f;
  const float middle = static_cast<float>(x / (1 << 20) % (1 << 20)) * 1048576.0f;
  const float low = static_cast<float>(x % (1 << 20));
  return scaled(high, 0.0f, 0) + scaled(middle, 0.0f, 0) + scaled(low, 0.0f, 0);
}

// What is nearest, times 2^(steps * scale).
inline float raised(float x, int32_t scale, float up, float down) {
  if (x == 0.0f || !(metal::precise::fabs(x) < INFINITY)) return x;
  for (int i = 0; i < 5 && scale > 0; ++i, --scale) x *= up;
  for (int i = 0; i < 5 && scale < 0; ++i, ++scale) x *= down;
  return x;
}
inline float float_of(Wide x) {
  return raised(x.high, x.scale, kUp, kDown);
}
inline float root_of(Wide x) {
  return raised(metal::precise::sqrt(x.high), x.scale, kMost, kLeast);
}

}  // namespace npusim
