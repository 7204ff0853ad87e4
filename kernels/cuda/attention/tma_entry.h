// The entry of tma_attention.h, whose parameters after the pointers are the tensor maps of keys and
// values. Devices without TMA, and operands that TMA cannot read, are left to mma_attention.h, in
// tiles of fewer rows.
#pragma once
#include "kernels/cuda/attention/mma_attention.h"
#include "kernels/cuda/common/tma.h"

namespace npusim {

// The rows of a block by tiles of mma_attention.h.
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

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "kernels/cuda/attention/tma_attention.h"
#define NPUSIM_TMA_BOUNDS __launch_bounds__(NPUSIM_BLOCK, NPUSIM_BLOCKS_PER_SM)
#else
#define NPUSIM_TMA_BOUNDS __launch_bounds__(NPUSIM_BLOCK)
#endif
#ifdef __CUDACC_RTC__
#define NPUSIM_TMA_SIGNATURE                                        \
  NPUSIM_SIGNATURE, const __grid_constant__ npusim::TensorMap keys, \
      const __grid_constant__ npusim::TensorMap values
#else
#define NPUSIM_TMA_SIGNATURE NPUSIM_SIGNATURE
#endif

extern "C" __global__ void NPUSIM_TMA_BOUNDS npusim_kernel(NPUSIM_TMA_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  npusim::run_tma(operands, keys, values);
#else
  npusim::run_plain_tiles(operands);
#endif
}
