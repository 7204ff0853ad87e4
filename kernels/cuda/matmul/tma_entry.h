// The entry of tma_matmul.h, whose parameters after the pointers are the tensor maps of x and of
// each segment of W. Devices without TMA, and operands that TMA cannot read, are left to
// linear_tile.h, by the first block of each cluster.
#pragma once
#include "kernels/cuda/common/tma.h"
#include "kernels/cuda/common/tma_signature.h"
#include "kernels/cuda/matmul/entry_operands.h"
#include "kernels/cuda/matmul/linear_source.h"
#include "kernels/cuda/matmul/tma_tile.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "kernels/cuda/matmul/tma_matmul.h"
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NPUSIM_TMA_BOUNDS                                                \
  __cluster_dims__(NPUSIM_CLUSTER_M, NPUSIM_CLUSTER_N, NPUSIM_CLUSTER_K) \
      __launch_bounds__(NPUSIM_BLOCK, NPUSIM_BLOCKS_PER_SM)
#else
#define NPUSIM_TMA_BOUNDS __launch_bounds__(NPUSIM_BLOCK)
#endif

namespace npusim {

// The tile of a block, in the narrower tiles of linear_tile.h.
inline void run_tiles(void* const* operands, const TmaTile& tile) {
  Source source = source_of(operands);
  const int64_t begin = tile.first_column;
  const int64_t end = smaller<int64_t>(begin + kTmaOutputs, params.n);
  source.first_row = tile.first_row;
#pragma unroll 1
  for (source.first_column = begin; source.first_column < end; source.first_column += kOutputs) {
    run_tile(source, operands, end);
    __syncthreads();  // shared memory is free again
  }
  if constexpr (kBeforeNorm) {
    store_norm_outputs<kTileRows, kTmaOutputs>(operands, tile.first_row, begin,
                                               BlockTile::kThreads);
  }
}

}  // namespace npusim

extern "C" __global__ void NPUSIM_TMA_BOUNDS npusim_kernel(NPUSIM_TMA_SIGNATURE) {
  NPUSIM_DECLARE_OPERANDS;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (npusim::operands_are_chunk_aligned(operands)) {
    npusim::run_tma(operands, npusim::Maps{{NPUSIM_ALL_MAPS(NPUSIM_MAP_NAMED)}});
    return;
  }
#endif
  npusim::wait_on_dependencies();
  if (blockIdx.z > 0 || threadIdx.x >= npusim::BlockTile::kThreads) return;
  npusim::TmaTile tile;
  do {
    npusim::run_tiles(operands, tile);
    tile.advance();
  } while (tile.exists());
}
