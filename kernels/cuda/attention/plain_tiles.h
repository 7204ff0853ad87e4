// The rows of a block of tma_attention.h where it cannot compute them, by tiles of mma_attention.h,
// which have fewer.
#pragma once
#include "kernels/cuda/attention/mma_attention.h"

namespace npusim {

inline void run_plain_tiles(void* const* operands) {
  if (threadIdx.x >= kThreads) return;
  constexpr int kParts = NPUSIM_TMA_ROWS / kBlockRows;
  const int last = static_cast<int>(gridDim.x) * kParts - 1;
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
    const int index = static_cast<int>(blockIdx.x) * kParts + part;
    run(operands, params.causal ? last - index : index);
    __syncthreads();  // shared memory is free again
  }
}

}  // namespace npusim
