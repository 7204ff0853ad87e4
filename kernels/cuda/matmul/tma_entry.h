// The entry of a product that copies by tensor maps, which are parameters behind the pointers: of
// x, and of each segment of W. Where there are no such copies, or operands lie badly, tiles do the
// work, a cluster's first blocks all of it.
#pragma once
#include "kernels/cuda/common/tma.h"

#define NPUSIM_MAPS_2(X) X(0), X(1)
#define NPUSIM_MAPS_3(X) NPUSIM_MAPS_2(X), X(2)
#define NPUSIM_MAPS_4(X) NPUSIM_MAPS_3(X), X(3)
#define NPUSIM_MAPS_5(X) NPUSIM_MAPS_4(X), X(4)
#define NPUSIM_ALL_MAPS(X) NPUSIM_PASTE(NPUSIM_MAPS_, NPUSIM_MAPS)(X)
#define NPUSIM_MAP_DECLARED(i) const __grid_constant__ npusim::TensorMap map##i
#define NPUSIM_MAP_NAMED(i) &map##i
#ifdef __CUDACC_RTC__
#define NPUSIM_BULK_SIGNATURE NPUSIM_SIGNATURE, NPUSIM_ALL_MAPS(NPUSIM_MAP_DECLARED)
#else
#define NPUSIM_BULK_SIGNATURE NPUSIM_SIGNATURE
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NPUSIM_BULK_BOUNDS                                                \
  __cluster_dims__(NPUSIM_SHARE_ROWS, NPUSIM_SHARE_COLUMNS, NPUSIM_SPANS) \
      __launch_bounds__(NPUSIM_BLOCK, NPUSIM_BESIDE)
#else
#define NPUSIM_BULK_BOUNDS __launch_bounds__(NPUSIM_BLOCK)
#endif

namespace npusim {

// A tile, in the columns that Tile has.
inline void run_tiles(void* const* operands, const BulkTile& tile) {
  Source source = source_of(operands);
  const int64_t begin = tile.first_column;
  const int64_t end = smaller<int64_t>(begin + kBulkOutputs, params.n);
  source.first_row = tile.first_row;
#pragma unroll 1
  for (source.first_column = begin; source.first_column < end; source.first_column += kOutputs) {
    run_tile(source, operands, end);
    __syncthreads();  // shared memory has been read
  }
  if constexpr (kLeavesNorm) {
    leave_tile<kTileRows, kBulkOutputs>(operands, tile.first_row, begin, Product::kThreads);
  }
}

}  // namespace npusim

extern "C" __global__ void NPUSIM_BULK_BOUNDS npusim_kernel(NPUSIM_BULK_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (npusim::operands_lie_on_chunks(operands)) {
    npusim::run_bulk(operands, npusim::Maps{{NPUSIM_ALL_MAPS(NPUSIM_MAP_NAMED)}});
    return;
  }
#endif
  npusim::wait_on_dependencies();
  if (blockIdx.z > 0 || threadIdx.x >= npusim::Product::kThreads) return;
  npusim::BulkTile tile;
  do {
    npusim::run_tiles(operands, tile);
    tile.advance();
  } while (tile.exists());
}
