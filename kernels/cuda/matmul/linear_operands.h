// The operands of linear, and of linear beside an RMS norm: normed_linear normalises x,
// linear_before_norm begins the norm of y, linear_behind_norm ends the norm of x (norm_between.h).
// The parameters tell which of them this is.
#pragma once
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/matmul/product_operands.h"

namespace npusim {

static_assert(!kNormed || NPUSIM_PATH == NPUSIM_PATH_GEMV_SIMT ||
              NPUSIM_PATH == NPUSIM_PATH_GEMV_MULTISTAGE);

using W = Storage<params.w_dtype>;
// Row `row` of W, whose segments follow one another.
inline const W* weight_row(void* const* operands, int64_t row) {
  const W* from = static_cast<const W*>(operands[1]) + row * params.ldw[0];
  int64_t first = 0;
#pragma unroll
  for (int i = 1; i < params.segments; ++i) {
    constexpr auto p = params;
    first += p.rows[i - 1];
    if (row >= first) from = static_cast<const W*>(operands[1 + i]) + (row - first) * p.ldw[i];
  }
  return from;
}

// Whether all rows of x and W begin on 16 bytes.
constexpr bool is_chunk_aligned(int64_t elements, int64_t size) {
  return elements * size % 16 == 0;
}
constexpr bool rows_are_chunk_aligned() {
  bool all = params.m == 1 || is_chunk_aligned(params.ldx, sizeof(X));
  for (int i = 0; i < params.segments; ++i) all = all && is_chunk_aligned(params.ldw[i], sizeof(W));
  return all;
}
inline bool operands_are_chunk_aligned(void* const* operands) {
  bool all = rows_are_chunk_aligned() && is_aligned(operands[0], 16);
#pragma unroll
  for (int i = 0; i < kWeights; ++i) all = all && is_aligned(operands[1 + i], 16);
  return all;
}

}  // namespace npusim
