// How a quantized weight lies in memory: what `quantize` writes and `quantized_linear` reads. The
// same layout, with a reference, is in python/npusim/abi/quantization.py.
//
// K is padded with zeros to whole blocks of 128. Three sections follow one another, each beginning
// on a cache line: the codes of all rows, their scales, their zero points; then a cache line of
// padding, so that a vector may be loaded wherever an element is.
//
//   int8   element = code * scale, code in [-127, 127], one float32 scale a row.
//   fp8    likewise, codes of float8 (e4m3). A row with a NaN among its codes has NaN for its
//          scale, so that nobody looks for one in codes.
//   int4   element = (code - zero) * scale, code in [0, 15], one float16 scale a group; the zero is
//          8, or a byte a group in sixteenths. 32 elements are 8 words of 16 bits: word j holds
//          elements j, j + 8, j + 16 and j + 24 from its low bits up, so that one shift and one
//          mask unpack a vector of 16-bit lanes, and four of these belong to the same groups.
#pragma once

#include "kernels/cpu/check.h"
#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {

enum QuantizedFormat : int32_t { kInt8 = 1, kInt4 = 2, kInt4Asymmetric = 3, kFloat8 = 4 };

// Whether a code is a byte, and a row has one scale.
constexpr bool has_bytes(int32_t format) {
  return format == kInt8 || format == kFloat8;
}

inline constexpr int64_t kCodeBlock = 128;  // what K is padded to; bytes have no smaller group
inline constexpr int64_t kCodeRun = 32;     // elements of int4 that are stored together
inline constexpr float kSymmetricZero = 8;
inline constexpr float kZeroStep = 0.0625F;  // of a stored zero point

// Where the parts of rows x k elements are, in bytes.
struct QuantizedLayout {
  int64_t k = 0;                  // padded
  int64_t codes = 0;              // of a row
  int64_t groups = 0;             // of a row: ranges of K that share a scale of x
  int64_t scales = 0, zeros = 0;  // offsets of the sections
  int64_t bytes = -1;             // of all; -1 when the parameters describe no weight

  QuantizedLayout() = default;
  QuantizedLayout(int32_t format, int64_t rows, int64_t columns, int64_t group) {
    constexpr int64_t kMost = int64_t{1} << 30;  // so that no product below overflows
    if (format < kInt8 || format > kFloat8 || rows < 0 || columns < 0) return;
    if (rows > kMost || columns > kMost) return;
    if (!has_bytes(format) && group != 32 && group != 64 && group != 128) return;
    k = (columns + kCodeBlock - 1) / kCodeBlock * kCodeBlock;
    codes = has_bytes(format) ? k : k / 2;
    groups = k / (has_bytes(format) ? kCodeBlock : group);
    scales = lines(rows * codes);
    zeros = scales + lines(rows * (has_bytes(format) ? int64_t{sizeof(float)} : 2 * groups));
    bytes = zeros + (format == kInt4Asymmetric ? lines(rows * groups) : 0) + 64;
  }

 private:
  static int64_t lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

// check() of an operand that `quantize` writes or has written.
inline const char* check_quantized(const KernelCheck& c, size_t operand,
                                   const QuantizedLayout& layout) {
  if (layout.bytes < 0) return "the quantized weight has no such format, group or size";
  if (operand >= c.operand_bytes.size()) return "an operand is missing";
  if (c.operand_before[operand] % int64_t{sizeof(float)} != 0)
    return "a quantized weight is not aligned to its scales";
  return Region().dim(layout.bytes, 1).reads(c, operand, 1);
}

// One row of a quantized weight.
struct QuantizedRow {
  const std::byte* codes;
  const float* scale;     // of bytes
  const float16* scales;  // int4
  const uint8_t* zeros;   // asymmetric int4

  QuantizedRow(const void* weight, const QuantizedLayout& layout, int64_t row) {
    const auto* base = static_cast<const std::byte*>(weight);
    codes = base + row * layout.codes;
    scale = reinterpret_cast<const float*>(base + layout.scales) + row;
    scales = reinterpret_cast<const float16*>(base + layout.scales) + row * layout.groups;
    zeros = reinterpret_cast<const uint8_t*>(base + layout.zeros) + row * layout.groups;
  }
  // To the row below.
  void advance(const QuantizedLayout& layout) {
    codes += layout.codes;
    ++scale;
    scales += layout.groups;
    zeros += layout.groups;
  }
};

}  // namespace npusim::cpu::NPUSIM_ISA
