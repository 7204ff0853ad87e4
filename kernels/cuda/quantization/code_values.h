// Codes as floats, one by one and in eights.
#pragma once
#include "kernels/cuda/common/mma_types.h"
#include "kernels/cuda/quantization/quantized_layout.h"

namespace npusim {

// A small unsigned integer as float, above a base: exact.
constexpr unsigned kFloatBase = 0x4b000000;  // 2^23
inline float above_base(unsigned code, float below) {
  return __uint_as_float(kFloatBase | code) - (8388608.0f + below);
}
// Byte i of a word of codes.
inline float byte_code(unsigned word, int i) {
  if constexpr (kFloatCodes) {
    const unsigned byte = word >> (8 * i) & 0xff;
    return __uint_as_float((byte & 0x7f) << 20 | (byte & 0x80) << 24) * 0x1p120f;
  }
  const unsigned biased = word ^ 0x80808080u;
  return above_base(biased >> (8 * i) & 0xff, 128.0f);
}
// Element `e` of the 32 of int4 codes, less `kMiddle`.
template <int kMiddle>
float nibble_code(const uint4& v, int e) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
  const int word = e % 8;
  return above_base(words[word / 2] >> (word % 2 * 16 + e / 8 * 4) & 15, kMiddle);
}

// Elements k to k + 7 of a row, as T of 16 bits; of bytes, the codes without their scale.
template <typename T>
uint4 code_chunk(const QuantizedRow& w, int64_t k) {
  unsigned out[4];
  if constexpr (kBytes) {
    const uint2 v = *reinterpret_cast<const uint2*>(w.codes + k);
    const unsigned words[2] = {v.x, v.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i] =
          pack_pair<T>(byte_code(words[i / 2], i % 2 * 2), byte_code(words[i / 2], i % 2 * 2 + 1));
    }
  } else {
    const uint4 v = *reinterpret_cast<const uint4*>(w.codes + k / 32 * 16);
    const int64_t group = k / kGroupSize;
    const float scale = to_float(w.scales[group]), zero = w.zero(group);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    const int shift = k % 32 / 8 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = above_base(words[i] >> shift & 15, 0.0f);
      const float high = above_base(words[i] >> (shift + 16) & 15, 0.0f);
      out[i] = pack_pair<T>((low - zero) * scale, (high - zero) * scale);
    }
  }
  return {out[0], out[1], out[2], out[3]};
}

}  // namespace npusim
