// y[o] = x[o, wrapped index tensors]: embedding, index_select, gather, advanced indexing. A thread
// moves NPUSIM_PACK neighbours along the last dimension, more than one where these share their
// indices and are contiguous in x and y.
#include "kernels/cuda/indexing/index_space.h"

namespace npusim {

constexpr int kPack = NPUSIM_PACK;
using T = typename BitsOf<params.element_size>::type;

inline void gather(const void* x_memory, const void* const* tensors, void* y_memory,
                   Failure* failure) {
  int64_t item = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
  if (item >= NPUSIM_ITEMS) return;
  Cursor at;
#pragma unroll
  for (int d = params.rank - 1; d >= 0; --d) {
    const int64_t step = d == params.rank - 1 ? kPack : 1, size = params.shape[d] / step;
    at.move(d, item % size * step, params.y_strides[d], params.x_strides[d]);
    item /= size;
  }
  if (!resolve(at, tensors, failure)) return;
  const T* x = static_cast<const T*>(x_memory) + at.indexed;
  T* y = static_cast<T*>(y_memory) + at.dense;
  if (kPack == 1) {
    *y = *x;
  } else if (is_packed<kPack>(x) && is_packed<kPack>(y)) {
    store_pack(y, load_pack<kPack>(x));
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = x[i];
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, NPUSIM_TENSORS void* y, npusim::Failure* failure) {
  const void* const tensors[] = {NPUSIM_TENSOR_LIST};
  npusim::gather(x, tensors, y, failure);
}
