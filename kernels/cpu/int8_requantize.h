// Sums of products of bytes become bytes by integers alone: a multiplier of 31 bits and a shift, as
// machines without floats behind their sums have them. `abi/requantization.py` is the definition.
#pragma once

#include <cmath>

#include "kernels/cpu/int8_finish.h"

namespace npusim::cpu::NPUSIM_ISA {

// Codes of `abi/requantization.py`; 0 is no requantization by integers.
enum class Rounding : int32_t { kHalfEven = 1, kHalfUp, kHalfAway, kFloor, kDouble };

inline bool is_rounding(int32_t code) {
  return code >= static_cast<int32_t>(Rounding::kHalfEven) &&
         code <= static_cast<int32_t>(Rounding::kDouble);
}

// A factor is multiplier / 2^shift.
struct FixedFactor {
  int32_t multiplier = 0, shift = 1;
};

inline FixedFactor fixed_factor(float scale) {
  constexpr int kBits = 31, kMostShift = 62;
  if (std::isnan(scale)) return {};
  const double limit = 2147483647.0;
  if (std::fabs(scale) >= 0x1p30F) return {static_cast<int32_t>(std::copysign(limit, scale)), 1};
  int exponent = 0;
  double whole = std::ldexp(std::frexp(static_cast<double>(scale), &exponent), kBits);
  const int shift = kBits - exponent;
  if (shift > kMostShift) whole = std::trunc(std::ldexp(whole, kMostShift - shift));
  return {static_cast<int32_t>(whole), std::clamp(shift, 1, kMostShift)};
}

// value / 2^shift, |value| < 2^62.
template <Rounding kRule>
inline int64_t shifted(int64_t value, int64_t shift) {
  const int64_t half = int64_t{1} << (shift - 1);
  if constexpr (kRule == Rounding::kFloor) {
    return value >> shift;
  } else if constexpr (kRule == Rounding::kHalfUp) {
    return (value + half) >> shift;
  } else if constexpr (kRule == Rounding::kHalfEven) {
    const int64_t up = (value + half) >> shift;
    const bool tie = (value & (2 * half - 1)) == half;
    return up - (tie ? up & 1 : 0);
  } else {
    const int64_t sign = value < 0 ? -1 : 1;
    return sign * ((sign * value + half) >> shift);
  }
}

template <Rounding kRule>
inline int64_t requantized(int64_t sum, int64_t multiplier, int64_t shift) {
  if constexpr (kRule != Rounding::kDouble) {
    return shifted<kRule>(sum * multiplier, shift);
  } else {
    constexpr int64_t kHigh = int64_t{1} << 31;
    const int64_t left = std::max<int64_t>(31 - shift, 0);
    const int64_t near = std::clamp(sum * (int64_t{1} << left), -kHigh, kHigh - 1);
    const int64_t product = near * multiplier;
    const int64_t high = (product + (product >= 0 ? kHigh / 2 : 1 - kHigh / 2)) / kHigh;
    return shift > 31 ? shifted<Rounding::kHalfAway>(high, shift - 31) : high;
  }
}

// What is added to the bytes of a product, in one rounding: other bytes, both times a factor.
struct FixedSum {
  const uint8_t* residual = nullptr;
  const int64_t* rows = nullptr;
  int64_t flip = 0, zero = 0;  // of the other bytes
  int64_t low = 0, high = 0;   // what the product is clamped to before
  int64_t own = 0, other = 0, shift = 1;

  int64_t byte(int64_t at) const { return (residual[at] ^ flip) - flip - zero; }
};

// The integers nearest to factors times 2^shift of the larger.
inline FixedSum fixed_sum(const float* terms, bool is_signed) {
  constexpr double kLimit = 2147483647.0, kByte = 1 << 20;
  const double larger = std::max(std::fabs(terms[2]), std::fabs(terms[3]));
  const auto at = [&](float factor, int shift) {
    const double whole = std::nearbyint(std::ldexp(static_cast<double>(factor), shift));
    return whole == whole ? static_cast<int64_t>(std::clamp(whole, -kLimit, kLimit)) : 0;
  };
  const auto whole = [&](float value) {
    return value == value ? static_cast<int64_t>(std::clamp<double>(value, -kByte, kByte)) : 0;
  };
  FixedSum s;
  s.flip = is_signed ? kFlip : 0;
  s.shift = fixed_factor(static_cast<float>(larger)).shift;
  s.low = whole(terms[0]);
  s.high = std::max(s.low, whole(terms[1]));
  s.own = at(terms[2], static_cast<int>(s.shift));
  s.other = at(terms[3], static_cast<int>(s.shift));
  s.zero = whole(terms[4]);
  return s;
}

// Bytes of the result less its zero point, and that.
struct FixedRange {
  int64_t low, high, zero;
};

inline FixedRange fixed_range(int32_t y_dtype, int32_t zero, bool relu) {
  const int64_t low = (is_signed_byte(y_dtype) ? -128 : 0) - zero;
  return {relu ? std::max<int64_t>(low, 0) : low, low + 255, zero};
}

// One row, whose memory does not overlap, so that its elements are vectors' lanes.
template <Rounding kRule>
void requantize_row(const int32_t* __restrict sums, const int32_t* __restrict multiplier,
                    const int32_t* __restrict shift, int64_t columns, const FixedRange range,
                    uint8_t* __restrict y) {
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t v = requantized<kRule>(sums[c], multiplier[c], shift[c]);
    y[c] = static_cast<uint8_t>(std::clamp(v, range.low, range.high) + range.zero);
  }
}

// The residual may be y itself: each byte is read before it is written.
template <Rounding kRule>
void requantize_row_added(const int32_t* sums, const Int8Columns& by, int64_t columns,
                          const FixedRange& range, const FixedSum& added, int64_t at, uint8_t* y) {
  int64_t total[kSumsStride];
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t v = requantized<kRule>(sums[c], by.multiplier[c], by.shift[c]);
    const int64_t own = std::clamp(v, added.low, added.high) * added.own;
    total[c] = shifted<kRule>(own + added.byte(at + c) * added.other, added.shift);
  }
  for (int64_t c = 0; c < columns; ++c) {
    y[c] = static_cast<uint8_t>(std::clamp(total[c], range.low, range.high) + range.zero);
  }
}

template <Rounding kRule>
void requantize_rows(const Int8Sums& s, const Int8Columns& by, const FixedRange& range,
                     const FixedSum* added, uint8_t* y, const int64_t* y_rows) {
  for (int64_t r = 0; r < s.rows; ++r) {
    int32_t* sums = s.at + r * kSumsStride;
    for (int64_t c = 0; c < s.columns; c += kLanes) store(sums + c, whole_sum(s, by, r, c));
    uint8_t* to = y + y_rows[r];
    if (added) {
      requantize_row_added<kRule>(sums, by, s.columns, range, *added, added->rows[r], to);
    } else {
      requantize_row<kRule>(sums, by.multiplier, by.shift, s.columns, range, to);
    }
  }
}

inline void requantize(int32_t rounding, const Int8Sums& s, const Int8Columns& by,
                       const FixedRange& range, const FixedSum* added, uint8_t* y,
                       const int64_t* y_rows) {
  switch (static_cast<Rounding>(rounding)) {
    case Rounding::kHalfEven:
      return requantize_rows<Rounding::kHalfEven>(s, by, range, added, y, y_rows);
    case Rounding::kHalfUp:
      return requantize_rows<Rounding::kHalfUp>(s, by, range, added, y, y_rows);
    case Rounding::kHalfAway:
      return requantize_rows<Rounding::kHalfAway>(s, by, range, added, y, y_rows);
    case Rounding::kFloor:
      return requantize_rows<Rounding::kFloor>(s, by, range, added, y, y_rows);
    case Rounding::kDouble:
      return requantize_rows<Rounding::kDouble>(s, by, range, added, y, y_rows);
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
