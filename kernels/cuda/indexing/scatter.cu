// y[o, wrapped index tensors] (op)= src[o], the inverse of index. Equal indices collide, and the
// result is that of row-major order. Bit NPUSIM_APART says of each dimension whether positions
// along it alone keep items apart, whatever the indices are: threads share these dimensions, and
// each thread walks the others in order.
#include "kernels/cuda/common/scalar_ops.h"
#include "kernels/cuda/indexing/index_space.h"

namespace npusim {

enum Mode : int32_t { kSet, kAdd, kMul, kMax, kMin };

using T = Storage<params.dtype>;
using C = Compute<params.dtype>;

// NaN wins in max and min, as in PyTorch's scatter_reduce.
inline T combine(T old, T given) {
  if constexpr (params.mode == kSet) return given;
  const C a = decode<C>(old), b = decode<C>(given);
  if constexpr (params.mode == kAdd) return encode<T>(scalar::add(a, b));
  if constexpr (params.mode == kMul) return encode<T>(scalar::mul(a, b));
  if constexpr (params.mode == kMax) return encode<T>(b > a || b != b ? b : a);
  return encode<T>(b < a || b != b ? b : a);
}

// Moves the cursor to item `i` of the dimensions that are apart, or of the others.
inline void seek(Cursor& at, int64_t i, bool apart) {
#pragma unroll
  for (int d = params.rank - 1; d >= 0; --d) {
    if ((NPUSIM_APART >> d & 1) != static_cast<int>(apart)) continue;
    at.move(d, i % params.shape[d], params.src_strides[d], params.y_strides[d]);
    i /= params.shape[d];
  }
}

inline void scatter(const void* src_memory, const void* const* tensors, void* y_memory,
                    Failure* failure) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
  if (item >= NPUSIM_ITEMS) return;
  const T* src = static_cast<const T*>(src_memory);
  T* y = static_cast<T*>(y_memory);
  Cursor start;
  seek(start, item, true);
  for (int64_t i = 0; i < NPUSIM_STEPS; ++i) {
    Cursor at = start;
    seek(at, i, false);
    if (!resolve(at, tensors, failure)) continue;
    y[at.indexed] = combine(y[at.indexed], src[at.dense]);
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* src, NPUSIM_TENSORS void* y, npusim::Failure* failure) {
  const void* const tensors[] = {NPUSIM_TENSOR_LIST};
  npusim::scatter(src, tensors, y, failure);
}
