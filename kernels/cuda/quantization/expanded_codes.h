// Codes expanded to 16-bit floats in scratch memory, for a product of so many rows that this takes
// less than what tiles of codes cost: the matrix that a `linear` of one segment reads
// (matmul/tma_entry.h), whose parameters are `params`; those of the codes are `code_params`.
//
// Codes of bytes are exact, and their scales lie behind the matrix, one a row; those of int4 are
// elements, rounded to the matrix's type.
#pragma once
#include "kernels/cuda/common/dependent_launch.h"
#include "kernels/cuda/common/tma_signature.h"
#include "kernels/cuda/matmul/linear_params.h"
#include "kernels/cuda/matmul/sum_scales.h"
#include "kernels/cuda/quantization/code_values.h"

namespace npusim {

#define NPUSIM_PRODUCT_OPERANDS ExpandedOperands
// The operands of the product, of those of the command: x, the segments' codes, bias and residual,
// if any, y and the scratch memory.
struct ExpandedOperands {
  static constexpr int kAfter = (params.has_bias ? 1 : 0) + (params.residual ? 1 : 0) + 1;
  void* all[2 + kAfter];

  explicit ExpandedOperands(void* const* given) {
    all[0] = given[0];
    all[1] = given[1 + code_params.segments + kAfter];
#pragma unroll
    for (int i = 0; i < kAfter; ++i) all[2 + i] = given[1 + code_params.segments + i];
  }
};

constexpr bool kCodesUnwritten =
    (unwritten_codes >> 1 & ((1u << code_params.segments) - 1)) == (1u << code_params.segments) - 1;

// Expands NPUSIM_CHUNKS chunks of eight elements a thread of segment blockIdx.y. Scratch memory is
// written after the wait, as launches before may read it.
inline void expand_codes(void* const* given) {
  constexpr auto p = code_params;
  constexpr int64_t kRowChunks = kPaddedK / 8;
  const int segment = static_cast<int>(blockIdx.y);
  int64_t first = 0, rows = p.rows[0];
  const void* weight = given[1];
#pragma unroll
  for (int i = 1; i < p.segments; ++i) {
    if (segment < i) continue;
    first += p.rows[i - 1];
    rows = p.rows[i];
    weight = given[1 + i];
  }
  const ExpandedOperands operands(given);
  uint8_t* to = static_cast<uint8_t*>(operands.all[1]);
  const int64_t begin =
      static_cast<int64_t>(blockIdx.x) * (NPUSIM_EXPAND_BLOCK * NPUSIM_CHUNKS) + threadIdx.x;
  uint4 chunks[NPUSIM_CHUNKS];
  if constexpr (!kCodesUnwritten) wait_on_dependencies();
#pragma unroll
  for (int i = 0; i < NPUSIM_CHUNKS; ++i) {
    const int64_t at = begin + i * NPUSIM_EXPAND_BLOCK, row = at / kRowChunks;
    if (row >= rows) continue;
    chunks[i] = code_chunk<X>(QuantizedRow(weight, rows, row), at % kRowChunks * 8);
  }
  if constexpr (kCodesUnwritten) wait_on_dependencies();
#pragma unroll
  for (int i = 0; i < NPUSIM_CHUNKS; ++i) {
    const int64_t at = begin + i * NPUSIM_EXPAND_BLOCK, row = at / kRowChunks;
    if (row >= rows) continue;
    reinterpret_cast<uint4*>(to)[first * kRowChunks + at] = chunks[i];
    if (kScalesSums && at % kRowChunks == 0) {
      float* scales = reinterpret_cast<float*>(to + kScalesAt);
      scales[first + row] = *QuantizedRow(weight, rows, row).scale;
    }
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_EXPAND_BLOCK)
    npusim_expand(NPUSIM_TMA_SIGNATURE) {
  void* const given[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::expand_codes(given);
}
