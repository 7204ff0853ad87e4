// The entry of swap_ab.h, whose parameters after the pointers are the tensor maps of x and of each
// segment of W. Devices without TMA, and operands that TMA cannot read, are left to linear_tile.h,
// by the first block of each cluster.
#pragma once
#include "kernels/cuda/common/tma.h"
#include "kernels/cuda/common/tma_signature.h"
#include "kernels/cuda/matmul/entry_operands.h"
#include "kernels/cuda/matmul/linear_source.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "kernels/cuda/matmul/swap_ab.h"
#define NPUSIM_SWAP_AB_BOUNDS \
  __cluster_dims__(1, 1, NPUSIM_CLUSTER_K) __launch_bounds__(NPUSIM_BLOCK, NPUSIM_BLOCKS_PER_SM)
#else
#define NPUSIM_SWAP_AB_BOUNDS __launch_bounds__(NPUSIM_BLOCK)
#endif

namespace npusim {

// Columns of y, all rows of x, in the tiles of linear_tile.h.
inline void run_columns(void* const* operands, int64_t begin, int64_t end) {
  Source source = source_of(operands);
#pragma unroll 1
  for (source.first_row = 0; source.first_row < params.m; source.first_row += kTileRows) {
#pragma unroll 1
    for (source.first_column = begin; source.first_column < end; source.first_column += kOutputs) {
      run_tile(source, operands, end);
      __syncthreads();  // shared memory is free again, and y has been stored
      if constexpr (kBeforeNorm) {
        store_norm_outputs<kTileRows, kOutputs>(operands, source.first_row, source.first_column,
                                                BlockTile::kThreads);
      }
    }
  }
}

// The columns of a block.
inline void run_tiles(void* const* operands) {
  constexpr int kColumnsOfBlock = 64 * NPUSIM_GROUPS / kParts;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kColumnsOfBlock;
  run_columns(operands, begin, smaller<int64_t>(begin + kColumnsOfBlock, params.n));
}

#ifdef NPUSIM_ROPE_JOINED
// The same, by the first tile of a head: in scratch memory, from where columns are turned.
inline void run_heads(void* const* given) {
  constexpr int kTiles = RopeHeads::kD / (64 * NPUSIM_GROUPS);  // of a head
  if (blockIdx.y % kTiles != 0) return;
  const ProductOperands product(given);
  const int head = static_cast<int>(blockIdx.y) / kTiles;
  run_columns(product.all, head * RopeHeads::kD, (head + 1) * RopeHeads::kD);
  run_rope_of_head(given, head, BlockTile::kThreads);
}
#endif

}  // namespace npusim

extern "C" __global__ void NPUSIM_SWAP_AB_BOUNDS npusim_kernel(NPUSIM_TMA_SIGNATURE) {
  NPUSIM_DECLARE_OPERANDS;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (npusim::swap_ab::fits(operands)) {
    npusim::swap_ab::run(operands, npusim::Maps{{NPUSIM_ALL_MAPS(NPUSIM_MAP_NAMED)}});
    return;
  }
#endif
  npusim::wait_on_dependencies();
  if (blockIdx.z > 0 || threadIdx.x >= npusim::BlockTile::kThreads) return;
#ifdef NPUSIM_ROPE_JOINED
  npusim::run_heads(operands);
#else
  npusim::run_tiles(operands);
#endif
}
