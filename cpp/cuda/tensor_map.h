// Matrices as the tensor memory engine reads them: what a kernel's image says of them, and what the
// driver encodes for one address.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/cuda/driver.h"

namespace npusim::cuda {

// A matrix of 16-bit elements, copied in boxes of 64 of them by `box` rows.
struct Matrix {
  int64_t operand;  // that holds it
  int64_t rows, columns;
  int64_t stride;  // bytes from one row to the next
  int64_t box;
};

// CUtensorMap
struct alignas(64) TensorMap {
  uint64_t words[16] = {};
};

// The map of a matrix at an address. Where that is no multiple of 16, which maps cannot have, an
// empty one, which the kernel does not use. Throws Error(kDevice). A context must be current.
TensorMap encode_map(const Driver& driver, const Matrix& matrix, const std::byte* address);

}  // namespace npusim::cuda
