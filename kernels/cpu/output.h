// What an epilogue does and where it writes: plain data, which instruction sets hand to one
// another.
#pragma once

#include <cstdint>

#include "kernels/shared/abi.h"

namespace npusim::cpu {

enum Residual : int32_t { kNoResidual = 0, kBeforeActivation = 1, kAfterActivation = 2 };

// Rows of y and of the residual may lie anywhere; their columns are contiguous. Pointers point at
// column 0, and `*_rows[r]` is the offset of row r in elements.
struct Output {
  void* y = nullptr;
  const int64_t* y_rows = nullptr;
  int64_t columns = 0;
  const float* bias = nullptr;  // one a column, or none
  int64_t more = 0;             // vectors after the bias: factors of the sums, then offsets of y
  int64_t vector = 0;           // floats from a vector to the next
  const void* residual = nullptr;
  const int64_t* r_rows = nullptr;
  int32_t y_dtype = 0;
  int32_t r_dtype = 0;
  int32_t residual_mode = kNoResidual;
  abi::Opcode act = abi::Opcode::kCopy;
  float lo = 0, hi = 0;
};

}  // namespace npusim::cpu
