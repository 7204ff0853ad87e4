// What index and scatter share: the index tensors' part of an address. Indices out of range are
// reported, and nothing is read or written for them.
#pragma once
#include "kernels/cuda/common/scalar.h"

namespace npusim {

using Index = Storage<params.idx_dtype>;
constexpr int kIndices = params.n;

// A place in the iteration space: offsets into the dense operand, into the indexed one but for what
// the indices add, and into the index tensors.
struct Cursor {
  int64_t dense = 0, indexed = 0;
  int64_t indices[kIndices > 0 ? kIndices : 1] = {};

  void move(int d, int64_t digit, int64_t dense_stride, int64_t indexed_stride) {
    dense += digit * dense_stride;
    indexed += digit * indexed_stride;
#pragma unroll
    for (int k = 0; k < kIndices; ++k) indices[k] += digit * params.idx_strides[k * abi::kRank + d];
  }
};

// Adds what the index tensors say to the indexed offset; false when one is out of range.
inline bool resolve(Cursor& at, const void* const* tensors, Failure* failure) {
#pragma unroll
  for (int k = 0; k < kIndices; ++k) {
    const auto given = static_cast<int64_t>(static_cast<const Index*>(tensors[k])[at.indices[k]]);
    const int64_t value = given < 0 ? given + params.k_size[k] : given;
    if (value < 0 || value >= params.k_size[k]) {
      report(failure, kOutOfRange, given, params.k_size[k]);
      return false;
    }
    at.indexed += value * params.k_stride[k];
  }
  return true;
}

}  // namespace npusim

// The entry's parameters: one dense and one indexed operand around the index tensors.
#if NPUSIM_INDICES == 0
#define NPUSIM_TENSORS
#define NPUSIM_TENSOR_LIST nullptr
#elif NPUSIM_INDICES == 1
#define NPUSIM_TENSORS const void *i0,
#define NPUSIM_TENSOR_LIST i0
#elif NPUSIM_INDICES == 2
#define NPUSIM_TENSORS const void *i0, const void *i1,
#define NPUSIM_TENSOR_LIST i0, i1
#elif NPUSIM_INDICES == 3
#define NPUSIM_TENSORS const void *i0, const void *i1, const void *i2,
#define NPUSIM_TENSOR_LIST i0, i1, i2
#elif NPUSIM_INDICES == 4
#define NPUSIM_TENSORS const void *i0, const void *i1, const void *i2, const void *i3,
#define NPUSIM_TENSOR_LIST i0, i1, i2, i3
#elif NPUSIM_INDICES == 5
#define NPUSIM_TENSORS \
  const void *i0, const void *i1, const void *i2, const void *i3, const void *i4,
#define NPUSIM_TENSOR_LIST i0, i1, i2, i3, i4
#else
#define NPUSIM_TENSORS \
  const void *i0, const void *i1, const void *i2, const void *i3, const void *i4, const void *i5,
#define NPUSIM_TENSOR_LIST i0, i1, i2, i3, i4, i5
#endif
