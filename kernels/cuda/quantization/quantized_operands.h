// The operands of quantized_linear, and of it behind an RMS norm; single codes as floats.
#pragma once
#include "kernels/cuda/common/mma_types.h"
#include "kernels/cuda/matmul/product_operands.h"
#include "kernels/cuda/quantization/quantized_layout.h"

namespace npusim {

// Row `row` of W: segments follow one another.
inline QuantizedRow weight_row(void* const* operands, int64_t row) {
  QuantizedRow found(operands[1], params.rows[0], row);
  int64_t first = 0;
#pragma unroll
  for (int i = 1; i < params.segments; ++i) {
    first += params.rows[i - 1];
    if (row >= first) found = QuantizedRow(operands[1 + i], params.rows[i], row - first);
  }
  return found;
}

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

}  // namespace npusim
