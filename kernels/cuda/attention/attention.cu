// y = softmax(cap(scale * q·kᵀ) + mask, causal)·v with a running maximum and sum per row (online
// softmax: Milakov & Gimelshein, arXiv:1805.02867; tiles: Dao et al., arXiv:2205.14135).
//
// NPUSIM_PATH (common/paths.h) is TMA for many rows on Hopper, TILE_MMA, TILE_FLOAT for float32, or
// LONG_HEADS for heads too long for these.
// Where there are few rows, tiles cut the keys into NPUSIM_SPLIT splits (split-KV); a second launch
// combines them, or with NPUSIM_CLUSTERED the blocks of a cluster do.
#include "kernels/cuda/attention/rows.h"
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/common/paths.h"

#if NPUSIM_PATH != NPUSIM_PATH_LONG_HEADS  // what several paths include comes before all
#include "kernels/cuda/attention/key_warps.h"
#include "kernels/cuda/attention/online_softmax.h"
#endif

#if NPUSIM_PATH == NPUSIM_PATH_TILE_MMA || NPUSIM_PATH == NPUSIM_PATH_TMA
#include "kernels/cuda/attention/mma_attention.h"
#elif NPUSIM_PATH == NPUSIM_PATH_TILE_FLOAT
#include "kernels/cuda/attention/float_attention.h"
#else
#include "kernels/cuda/attention/long_heads.h"
#endif

#ifdef NPUSIM_BLOCKS_PER_SM
#define NPUSIM_BOUNDS __launch_bounds__(NPUSIM_BLOCK, NPUSIM_BLOCKS_PER_SM)
#else
#define NPUSIM_BOUNDS __launch_bounds__(NPUSIM_BLOCK)
#endif
#if NPUSIM_PATH == NPUSIM_PATH_TMA
#include "kernels/cuda/attention/tma_entry.h"
#else
#if NPUSIM_CLUSTERED && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define NPUSIM_CLUSTER_DIMS __cluster_dims__(1, 1, NPUSIM_SPLIT)
#else
#define NPUSIM_CLUSTER_DIMS
#endif
extern "C" __global__ void NPUSIM_CLUSTER_DIMS NPUSIM_BOUNDS npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}

#if NPUSIM_SPLIT > 1 && !NPUSIM_CLUSTERED
extern "C" __global__ void __launch_bounds__(128) npusim_combine(NPUSIM_SIGNATURE) {
  npusim::wait_on_dependencies();
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::combine<npusim::kBlockRows, npusim::kTile>(operands);
}
#endif
#endif
