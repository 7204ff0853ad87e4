// What index and scatter share: the index tensors' part of an address. Indices out of range are
// reported, and nothing is read or written for them. Operands are a tensor, the index tensors, and
// another tensor, scratch memory where there is some, and last where to report.
#pragma once
#include "kernels/device/entry.h"

namespace npusim {

using Index = Storage<params.idx_dtype>;
NPUSIM_CONSTANT constexpr int kIndices = params.n;
NPUSIM_CONSTANT constexpr int kRank = sizeof(params.shape) / sizeof(int64_t);

// A place in the iteration space: offsets into the dense operand, into the indexed one but for what
// the indices add, and into the index tensors.
struct Cursor {
  int64_t dense = 0, indexed = 0;
  int64_t indices[kIndices > 0 ? kIndices : 1] = {};

  void move(int d, int64_t digit, int64_t dense_stride, int64_t indexed_stride) {
    dense += digit * dense_stride;
    indexed += digit * indexed_stride;
#pragma unroll
    for (int k = 0; k < kIndices; ++k) indices[k] += digit * params.idx_strides[k * kRank + d];
  }
};

// Adds what the index tensors say to the indexed offset; false when one is out of range.
inline bool resolve(NPUSIM_THREAD Cursor& at, Arguments operands) {
#pragma unroll
  for (int k = 0; k < kIndices; ++k) {
    NPUSIM_GLOBAL const Index* tensor = static_cast<NPUSIM_GLOBAL const Index*>(operands[1 + k]);
    const int64_t given = static_cast<int64_t>(tensor[at.indices[k]]);
    const bool wraps = params.k_size[k] > 0;
    const int64_t size = wraps ? params.k_size[k] : -params.k_size[k];
    const int64_t value = wraps && given < 0 ? given + size : given;
    if (value < 0 || value >= size) {
      report(static_cast<NPUSIM_GLOBAL Failure*>(operands[NPUSIM_ARGUMENTS - 1]), kOutOfRange,
             given, size);
      return false;
    }
    at.indexed += value * params.k_stride[k];
  }
  return true;
}

}  // namespace npusim
