// Rows of many requests to the pages that their tables name. A block has a row, all its heads.
#include "kernels/cuda/attention/paged_destination.h"

namespace npusim {

constexpr int kThreads = NPUSIM_BLOCK;
constexpr int kEach = NPUSIM_EACH;  // elements that move as one
using T = BitsOf<params.dtype == 0 ? 4 : 2>::type;
enum Operands { kX, kTables, kY = 4, kFailure };

inline void run(void* const* operands) {
  const PagedTables<kTables> tables(operands, kFailure);
  const int64_t row = blockIdx.x;
  const PagedDestination to = kept_destination<kThreads>(tables, row);
  if (to.page < 0) return;
  const T* x = static_cast<const T*>(operands[kX]) + row * params.x_strides[1];
  T* y =
      static_cast<T*>(operands[kY]) + to.page * params.y_strides[0] + to.row * params.y_strides[2];
  constexpr int kOfHead = static_cast<int>(params.head_dim) / kEach;
  constexpr int kAll = static_cast<int>(params.heads) * kOfHead;
  for (int i = threadIdx.x; i < kAll; i += kThreads) {
    const int64_t head = i / kOfHead, at = i % kOfHead * kEach;
    const T* from = x + head * params.x_strides[0] + at;
    T* there = y + head * params.y_strides[1] + at;
    if (kEach == 1 || !is_aligned(x, 16) || !is_aligned(y, 16)) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) there[e] = from[e];
    } else {
      *reinterpret_cast<uint4*>(there) = *reinterpret_cast<const uint4*>(from);
    }
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}
