// The operands of quantized_linear, and of it behind an RMS norm.
#pragma once
#include "kernels/cuda/common/mma_types.h"
#include "kernels/cuda/matmul/product_operands.h"
#include "kernels/cuda/quantization/code_values.h"

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

}  // namespace npusim
