// Convolution of one to three dimensions, grouped, dilated or transposed (at once or in phases), as
// a product: rows are output positions, K runs over taps and channels, B is what pack_b wrote.
//
// NPUSIM_PATH (common/paths.h) says how:
//   TILE_MMA   16-bit operands whose channels are contiguous, a multiple of eight: tiles on the
//              tensor cores
//   PATCH      16-bit operands of few channels: patches of the input in shared memory, tensor cores
//   STRIP      groups of few channels: strips of y by multiply-adds
//   TILE_FLOAT anything else: tiles of float32 on the tensor cores
// What several paths include comes before all.
#include "kernels/cuda/common/wgmma.h"
#include "kernels/cuda/conv/conv_operands.h"
#include "kernels/cuda/matmul/epilogue.h"
#if NPUSIM_PATH == NPUSIM_PATH_TILE_MMA || NPUSIM_PATH == NPUSIM_PATH_PATCH
#include "kernels/cuda/conv/conv_vectors.h"
#endif

#if NPUSIM_PATH == NPUSIM_PATH_TILE_MMA
#include "kernels/cuda/conv/mma_conv.h"
#elif NPUSIM_PATH == NPUSIM_PATH_PATCH
#include "kernels/cuda/conv/patch_conv.h"
#elif NPUSIM_PATH == NPUSIM_PATH_STRIP
#include "kernels/cuda/conv/grouped_conv.h"
#else
#include "kernels/cuda/conv/float_conv.h"
#endif

#ifndef NPUSIM_CLUSTER_DIMS
#define NPUSIM_CLUSTER_DIMS
#endif
#ifdef NPUSIM_BLOCKS_PER_SM
#define NPUSIM_BOUNDS __launch_bounds__(NPUSIM_BLOCK, NPUSIM_BLOCKS_PER_SM)
#else
#define NPUSIM_BOUNDS __launch_bounds__(NPUSIM_BLOCK)
#endif
extern "C" __global__ void NPUSIM_CLUSTER_DIMS NPUSIM_BOUNDS npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}

#if NPUSIM_PATH == NPUSIM_PATH_TILE_FLOAT && NPUSIM_SPLIT > 1
extern "C" __global__ void __launch_bounds__(256) npusim_combine(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::wait_on_dependencies();
  npusim::combine(operands);
}
#endif
