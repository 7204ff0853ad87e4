// How a quantized weight lies in memory, as kernels/cpu/quantized.h says: K padded to blocks of
// 128; the codes of all rows, their scales, their zero points, each section on a line of 64 bytes.
//
//   int8   element = code * scale, code in [-127, 127], one float32 scale a row.
//   fp8    likewise, codes of float8 (e4m3). A row with a NaN among its codes has NaN for its
//          scale, so that nobody looks for one in codes.
//   int4   element = (code - zero) * scale, code in [0, 15], one float16 scale a group; the zero is
//          8, or a byte a group in sixteenths. 32 elements are 8 words of 16 bits: word j holds
//          elements j, j + 8, j + 16 and j + 24 from its low bits up.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

#ifndef NPUSIM_EXPANDED  // where `params` are those of a product over what codes were expanded to
constexpr auto code_params = params;
#endif
constexpr int kInt8 = 1, kAsymmetric = 3, kFloat8 = 4;
constexpr bool kFloatCodes = code_params.format == kFloat8;
constexpr bool kBytes = code_params.format == kInt8 || kFloatCodes;
constexpr int64_t kPaddedK = ceil_div(code_params.k, 128) * 128;
constexpr int64_t kGroupSize = kBytes ? kPaddedK : code_params.group;
constexpr int64_t kGroups = kBytes ? 1 : kPaddedK / code_params.group;  // of a row
constexpr int64_t kCodes = kBytes ? kPaddedK : kPaddedK / 2;            // bytes of a row
constexpr float kZeroStep = 0.0625f;

constexpr int64_t lines(int64_t bytes) {
  return ceil_div(bytes, 64) * 64;
}

// One row of a weight of `rows` rows.
struct QuantizedRow {
  const uint8_t* codes;
  const float* scale;
  const float16* scales;
  const uint8_t* zeros;

  QuantizedRow() = default;
  QuantizedRow(const void* weight, int64_t rows, int64_t row) {
    const uint8_t* base = static_cast<const uint8_t*>(weight);
    const uint8_t* scale_section = base + lines(rows * kCodes);
    codes = base + row * kCodes;
    scale = reinterpret_cast<const float*>(scale_section) + row;
    scales = reinterpret_cast<const float16*>(scale_section) + row * kGroups;
    zeros = scale_section + lines(rows * (kBytes ? 4 : 2 * kGroups)) + row * kGroups;
  }
  float zero(int64_t group) const {
    if constexpr (code_params.format == kAsymmetric) return zeros[group] * kZeroStep;
    return 8.0f;
  }
};

}  // namespace npusim
