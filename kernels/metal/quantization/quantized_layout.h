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
#include "kernels/gpu/quantization/float8.h"
#include "kernels/metal/common/scalar.h"

namespace npusim {

enum Format : int { kInt8 = 1, kSymmetric = 2, kAsymmetric = 3, kFloat8 = 4 };
constant constexpr bool kBytes = params.format == kInt8 || params.format == kFloat8;
constant constexpr int64_t kPaddedK = (params.k + 127) / 128 * 128;
constant constexpr int64_t kGroupSize = kBytes ? kPaddedK : params.group;
constant constexpr int64_t kGroupsOfRow = kBytes ? 1 : kPaddedK / params.group;
constant constexpr int64_t kRowBytes = kBytes ? kPaddedK : kPaddedK / 2;  // of codes

inline int64_t lines(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// One row of a weight of `rows` rows.
struct QuantizedRow {
  device const uint8_t* codes;
  device const uint8_t* scales;  // float, or half a group
  device const uint8_t* zeros;

  float scale(int64_t group) const {
    if (kBytes) return *reinterpret_cast<device const float*>(scales);
    return static_cast<float>(reinterpret_cast<device const half*>(scales)[group]);
  }
  float zero(int64_t group) const {
    return params.format == kAsymmetric ? static_cast<float>(zeros[group]) * 0.0625f : 8.0f;
  }
  // Codes k … k + 3, k a multiple of 4, without their zero; numbers of bytes without their scale.
  void numbers(int64_t k, thread float* to) const {
    if (params.format == kFloat8) {
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = float8_value(codes[k + e]);
      return;
    }
    if (kBytes) {
      device const int8_t* from = reinterpret_cast<device const int8_t*>(codes) + k;
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = static_cast<float>(from[e]);
      return;
    }
    const int64_t group = k / kGroupSize;
    const float by = scale(group), less = zero(group);
    device const uint16_t* words =
        reinterpret_cast<device const uint16_t*>(codes) + k / 32 * 8 + k % 8;
    const int shift = static_cast<int>(k % 32 / 8 * 4);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[e] = (static_cast<float>(words[e] >> shift & 15) - less) * by;
    }
  }
};

inline QuantizedRow quantized_row(device const uint8_t* weight, int64_t rows, int64_t row) {
  device const uint8_t* scales = weight + lines(rows * kRowBytes);
  const int64_t bytes = kBytes ? 4 : 2 * kGroupsOfRow;  // of a row's scales
  QuantizedRow found;
  found.codes = weight + row * kRowBytes;
  found.scales = scales + row * bytes;
  found.zeros = scales + lines(rows * bytes) + row * kGroupsOfRow;
  return found;
}

}  // namespace npusim
