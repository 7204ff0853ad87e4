// The entry of tma_codes.h, whose parameters after the pointers are the tensor maps of x and of the
// codes of each segment. Devices without TMA, and rows of x that TMA cannot read, are left to
// linear_tile.h, by the first block of each cluster.
#pragma once
#include "kernels/cuda/common/tma_signature.h"
#include "kernels/cuda/quantization/code_tile.h"
#include "kernels/cuda/quantization/codes_source.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "kernels/cuda/quantization/tma_codes.h"
#define NPUSIM_CODES_BOUNDS \
  __cluster_dims__(1, 1, NPUSIM_CLUSTER_K) __launch_bounds__(NPUSIM_BLOCK, NPUSIM_BLOCKS_PER_SM)
#else
#define NPUSIM_CODES_BOUNDS __launch_bounds__(NPUSIM_BLOCK)
#endif

namespace npusim {

// The tile of a block, in the smaller tiles of linear_tile.h.
inline void run_tiles(void* const* operands, const CodeTile& tile) {
  Source source = source_of(operands);
  const int64_t end = smaller<int64_t>(tile.first_column + kTileOutputs, params.n);
#pragma unroll 1
  for (source.first_row = tile.first_token; source.first_row < tile.first_token + kTokens;
       source.first_row += kTileRows) {
#pragma unroll 1
    for (source.first_column = tile.first_column; source.first_column < end;
         source.first_column += kOutputs) {
      run_tile(source, operands, end);
      __syncthreads();  // shared memory is free again
    }
  }
}

}  // namespace npusim

extern "C" __global__ void NPUSIM_CODES_BOUNDS npusim_kernel(NPUSIM_TMA_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (npusim::is_aligned(operands[0], 16)) {
    npusim::run_tma_codes(operands, npusim::Maps{{NPUSIM_ALL_MAPS(NPUSIM_MAP_NAMED)}});
    return;
  }
#endif
  npusim::wait_on_dependencies();
  if (blockIdx.z > 0 || threadIdx.x >= npusim::BlockTile::kThreads) return;
  npusim::run_tiles(operands, npusim::CodeTile{});
}
