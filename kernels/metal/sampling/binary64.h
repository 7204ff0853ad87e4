// Numbers of 64 bits as IEEE 754 has them, in integers: what sampling does with its options where
// other devices have double. To the bit: rounded to nearest even, with the smallest numbers and
// infinities; only a NaN's sign and payload are its own.
#pragma once

namespace npusim {

constant constexpr uint64_t kHidden64 = 1UL << 52;
constant constexpr uint64_t kSign64 = 1UL << 63;
constant constexpr uint64_t kInfinity64 = 0x7ff0000000000000UL;
constant constexpr uint64_t kNan64 = 0x7ff8000000000000UL;

// A magnitude m * 2^exponent.
struct Scaled64 {
  uint64_t m;
  int32_t exponent;
};
// The same with m's highest bit set; m is not 0.
inline Scaled64 normalised64(Scaled64 x) {
  const uint32_t high = static_cast<uint32_t>(x.m >> 32), low = static_cast<uint32_t>(x.m);
  const int32_t up = static_cast<int32_t>(high != 0 ? metal::clz(high) : 32 + metal::clz(low));
  return {x.m << up, x.exponent - up};
}
// The upper half of a product.
inline uint64_t upper64(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xffffffffUL, a_high = a >> 32;
  const uint64_t b_low = b & 0xffffffffUL, b_high = b >> 32;
  const uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
  const uint64_t rest = a_low * b_high + (middle & 0xffffffffUL);
  return a_high * b_high + (middle >> 32) + (rest >> 32);
}
// m / 2^by, with its last bit set where any was lost.
inline uint64_t shifted64(uint64_t m, int32_t by) {
  if (by <= 0) return m;
  if (by > 63) return m != 0;
  return m >> by | ((m << (64 - by)) != 0 ? 1UL : 0UL);
}
// The bits of the magnitude nearest to x in a format of `digits` bits, whose smallest number is
// 2^least and whose largest exponent field is `fields`; x's last bit stands for all behind it.
inline uint64_t rounded64(Scaled64 x, int32_t digits, int32_t least, int32_t fields) {
  if (x.m == 0) return 0;
  x = normalised64(x);
  const int32_t drop = 64 - digits;
  const int32_t field = x.exponent + drop - least + 1;  // of its exponent; below 1: a small number
  if (field >= fields) return static_cast<uint64_t>(fields) << (digits - 1);
  const uint64_t m = shifted64(x.m, field < 1 ? 1 - field : 0);
  const uint64_t kept = m >> drop, rest = m << digits;
  const uint64_t up = rest > kSign64 || (rest == kSign64 && (kept & 1) != 0) ? 1 : 0;
  return (static_cast<uint64_t>(field < 1 ? 0 : field - 1) << (digits - 1)) + kept + up;
}

struct Binary64 {
  uint64_t bits;

  Binary64() : bits(0) {}
  explicit Binary64(int32_t x) : bits(bits_of(static_cast<int64_t>(x))) {}
  explicit Binary64(int64_t x) : bits(bits_of(x)) {}
  explicit Binary64(uint64_t x) : bits(rounded({x, 0})) {}

  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits >> 32) & 0x80000000U;
    if (is_nan()) return as_type<float>(0x7fc00000U);
    if (magnitude() == kInfinity64) return as_type<float>(sign | 0x7f800000U);
    return as_type<float>(sign | static_cast<uint32_t>(rounded64(scaled(), 24, -149, 255)));
  }
  // Truncates; what does not fit is not asked for.
  explicit operator uint64_t() const {
    const Scaled64 x = scaled();
    if (x.exponent >= 0) return x.exponent > 11 ? 0 : x.m << x.exponent;
    return x.exponent < -63 ? 0 : x.m >> -x.exponent;
  }
  explicit operator int64_t() const {
    const int64_t size = static_cast<int64_t>(static_cast<uint64_t>(*this));
    return is_negative() ? -size : size;
  }

  bool is_nan() const { return magnitude() > kInfinity64; }
  bool is_negative() const { return bits >> 63 != 0; }
  uint64_t magnitude() const { return bits & ~kSign64; }
  // Of a finite number.
  Scaled64 scaled() const {
    const int32_t field = static_cast<int32_t>(magnitude() >> 52);
    const uint64_t m = bits & (kHidden64 - 1);
    return field == 0 ? Scaled64{m, -1074} : Scaled64{m | kHidden64, field - 1075};
  }
  // Orders as the numbers do; both zeros alike.
  int64_t order() const {
    const int64_t size = static_cast<int64_t>(magnitude());
    return is_negative() ? -size : size;
  }

  static uint64_t rounded(Scaled64 x) { return rounded64(x, 53, -1074, 2047); }
  static uint64_t bits_of(int64_t x) {
    const uint64_t size = static_cast<uint64_t>(x);
    return x < 0 ? kSign64 | rounded({0 - size, 0}) : rounded({size, 0});
  }
};

inline Binary64 binary64(uint64_t bits) {
  Binary64 x;
  x.bits = bits;
  return x;
}
inline bool operator<(Binary64 a, Binary64 b) {
  return !a.is_nan() && !b.is_nan() && a.order() < b.order();
}
inline bool operator>(Binary64 a, Binary64 b) {
  return !a.is_nan() && !b.is_nan() && a.order() > b.order();
}
inline bool operator>=(Binary64 a, Binary64 b) {
  return !a.is_nan() && !b.is_nan() && a.order() >= b.order();
}
inline bool operator!=(Binary64 a, Binary64 b) {
  return a.is_nan() || b.is_nan() || a.order() != b.order();
}

inline Binary64 operator*(Binary64 a, Binary64 b) {
  const uint64_t sign = (a.bits ^ b.bits) & kSign64;
  const bool in_order = a.magnitude() < b.magnitude();
  const uint64_t larger = in_order ? b.magnitude() : a.magnitude();
  const uint64_t smaller = in_order ? a.magnitude() : b.magnitude();
  if (larger > kInfinity64 || (larger == kInfinity64 && smaller == 0)) return binary64(kNan64);
  if (larger == kInfinity64) return binary64(sign | kInfinity64);
  if (smaller == 0) return binary64(sign);
  const Scaled64 x = normalised64(a.scaled()), y = normalised64(b.scaled());
  const uint64_t high = upper64(x.m, y.m), lost = x.m * y.m != 0 ? 1 : 0;
  return binary64(sign | Binary64::rounded({high | lost, x.exponent + y.exponent + 64}));
}

inline Binary64 operator/(Binary64 a, Binary64 b) {
  const uint64_t sign = (a.bits ^ b.bits) & kSign64;
  const bool infinite = a.magnitude() == kInfinity64, by_infinite = b.magnitude() == kInfinity64;
  const bool zero = a.magnitude() == 0, by_zero = b.magnitude() == 0;
  if (a.is_nan() || b.is_nan() || (infinite && by_infinite) || (zero && by_zero))
    return binary64(kNan64);
  if (infinite || by_zero) return binary64(sign | kInfinity64);
  if (zero || by_infinite) return binary64(sign);
  const Scaled64 x = normalised64(a.scaled()), y = normalised64(b.scaled());
  // Digit by digit; the highest bits of both are set, so that a rest fits into 64 bits.
  const uint64_t divisor = y.m >> 1;
  uint64_t rest = x.m >> 1, quotient = 0;
  for (int digit = 0; digit < 60; ++digit) {
    const bool fits = rest >= divisor;
    quotient = quotient << 1 | (fits ? 1UL : 0UL);
    rest = (fits ? rest - divisor : rest) << 1;
  }
  const uint64_t lost = rest != 0 ? 1 : 0;
  return binary64(sign | Binary64::rounded({quotient | lost, x.exponent - y.exponent - 59}));
}

}  // namespace npusim
