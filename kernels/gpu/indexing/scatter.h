// y[o, wrapped index tensors] (op)= src[o], the inverse of index. Equal indices collide, and the
// result is that of row-major order. What the ways to compute it share.
#pragma once
#include "kernels/device/entry.h"
#include "kernels/device/scalar_ops.h"
#include "kernels/gpu/indexing/index_space.h"

namespace npusim {

enum Mode : int32_t { kSet, kAdd, kMul, kMax, kMin };

using T = Storage<params.dtype>;
using C = Compute<params.dtype>;

// NaN wins in max and min, as in PyTorch's scatter_reduce.
inline T combine(T old, T given) {
  if (params.mode == kSet) return given;
  const C a = decode<C>(old), b = decode<C>(given);
  if (params.mode == kAdd) return encode<T>(scalar::add(a, b));
  if (params.mode == kMul) return encode<T>(scalar::mul(a, b));
  if (params.mode == kMax) return encode<T>(b > a || b != b ? b : a);
  return encode<T>(b < a || b != b ? b : a);
}

// Moves the cursor to item `i` of the dimensions in a mask.
template <int kDims, typename I>
inline void seek(NPUSIM_THREAD Cursor& at, I i) {
#pragma unroll
  for (int d = params.rank - 1; d >= 0; --d) {
    if ((kDims >> d & 1) == 0) continue;
    at.move(d, i % static_cast<I>(params.shape[d]), params.src_strides[d], params.y_strides[d]);
    i /= static_cast<I>(params.shape[d]);
  }
}

}  // namespace npusim
