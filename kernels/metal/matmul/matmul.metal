// y = alpha * a·b over batches, for operands that exist only at run time.
#include "kernels/metal/matmul/matmul_tile.h"

kernel void npusim_kernel(device const npusim::T* a [[buffer(0)]],
                          device const npusim::T* b [[buffer(1)]],
                          device npusim::T* y [[buffer(2)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  NPUSIM_TILE_MEMORY
  const int64_t row = group % NPUSIM_ROW_TILES * kTileRows;
  int64_t item = group / NPUSIM_ROW_TILES;
  const int64_t column = item % NPUSIM_COLUMN_TILES * kTileColumns;
  item /= NPUSIM_COLUMN_TILES;
#pragma unroll
  for (int d = 5; d >= 0; --d) {
    const int64_t i = item % params.batch[d];
    item /= params.batch[d];
    a += i * params.a_batch[d];
    b += i * params.b_batch[d];
    y += i * params.y_batch[d];
  }
  const MatmulSource source = {a, b, row, column, params.m, params.k};
  const MatmulOutput output = {y, row, column, params.m};
  run_tile(source, output, params.k, static_cast<int>(t), staged_a, staged_b, stage);
}
