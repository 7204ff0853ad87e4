// Codes float8 (e4m3): a sign, four bits of exponent above a bias of 7, three of fraction.
#pragma once
#include "kernels/device/scalar.h"

namespace npusim {

// The code of a number whose magnitude is at most 448: of normal numbers the last bits are rounded
// away, half to even; subnormal ones count steps of 2^-9. NaN becomes any code.
inline unsigned float8_code(float x) {
  const unsigned bits = float_bits(x), size = bits & 0x7fffffffu;
  const unsigned sign = bits >> 24 & 0x80u;
  if (magnitude(x) < 0.015625f) return sign | static_cast<unsigned>(rounded(magnitude(x) * 512.0f));
  return sign | ((((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - 960u) & 0x7fu);
}

// What a code stands for, but that NaN is 480: by numbers that no device takes for zero.
inline float float8_value(unsigned code) {
  const unsigned exponent = code >> 3 & 15u;
  const float step = float_of_bits(((exponent == 0 ? 1u : exponent) + 117u) << 23);
  const float size = static_cast<float>((code & 7u) + (exponent == 0 ? 0u : 8u)) * step;
  return (code & 128u) != 0 ? -size : size;
}

NPUSIM_CONSTANT constexpr unsigned kInfinityBits = 0x7f800000u;
NPUSIM_CONSTANT constexpr float kGreatestByte = params.format == 4 ? 448.0f : 127.0f;

// What a row's greatest element counts for: of float8, what is not finite as an infinity, which
// makes the row's scale NaN.
inline float size_of_element(float x) {
  const float size = magnitude(x);
  const bool counts = params.format != 4 || float_bits(size) < kInfinityBits;
  return counts ? size : float_of_bits(kInfinityBits);
}
inline float scale_of_bytes(float most) {
  return params.format == 4 && float_bits(most) == kInfinityBits ? float_of_bits(0x7fc00000u)
                                                                 : most / kGreatestByte;
}

}  // namespace npusim
