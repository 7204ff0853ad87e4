// The entry of tma_attention.h, whose parameters after the pointers are the tensor maps of keys and
// values. Devices without TMA, and operands that TMA cannot read, are left to mma_attention.h, in
// tiles of fewer rows.
#pragma once
#include "kernels/cuda/attention/plain_tiles.h"
#include "kernels/cuda/common/tma.h"

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
