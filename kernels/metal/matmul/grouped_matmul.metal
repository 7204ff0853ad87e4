// Products of consecutive groups of a's rows, each with a b of its own; where a group ends is data.
// Threadgroups are counted off over the tiles of each group's rows, and of the rows after all
// groups, which are 0; there are as many as any offsets can need, and those that are left over end.
#include "kernels/metal/matmul/matmul_tile.h"

kernel void npusim_kernel(device const npusim::T* a [[buffer(0)]],
                          device const npusim::T* b [[buffer(1)]],
                          device const int32_t* offsets [[buffer(2)]],
                          device npusim::T* y [[buffer(3)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  NPUSIM_TILE_MEMORY
  const int64_t column = group / NPUSIM_ROW_TILES * kTileColumns;
  int64_t tile = group % NPUSIM_ROW_TILES, begin = 0, row = params.m, rows = params.m, depth = 0;
  for (int64_t i = 0; i <= params.batch[5]; ++i) {
    int64_t end = params.m;
    if (i < params.batch[5] && offsets[i] < end) end = offsets[i];
    if (end <= begin) continue;
    const int64_t tiles = (end - begin + kTileRows - 1) / kTileRows;
    if (tile < tiles) {
      const bool exists = i < params.batch[5];
      b += exists ? i * params.b_batch[5] : 0;
      row = begin + tile * kTileRows;
      rows = end;
      depth = exists ? params.k : 0;
      break;
    }
    tile -= tiles;
    begin = end;
  }
  const MatmulSource source = {a, b, row, column, rows, depth};
  const MatmulOutput output = {y, row, column, rows};
  run_tile(source, output, 0, depth, static_cast<int>(t), staged_a, staged_b, stage);
}
