// y = alpha * a·b over batches, for operands that exist only at run time. NPUSIM_FEW says how many
// rows a has, or with NPUSIM_SWAPPED columns b, that columns or rows of the other operand stream
// by: those with neighbours in K together (few_rows.h), or with NPUSIM_ACROSS those that are
// neighbours of each other (few_across.h). 0: y goes in tiles (tile.h).
#include "kernels/metal/common/four.h"
#include "kernels/metal/matmul/matmul_output.h"
#include "kernels/metal/matmul/split.h"
#if NPUSIM_FEW
#include "kernels/metal/matmul/matmul_few.h"
#if NPUSIM_ACROSS
#include "kernels/metal/matmul/few_across.h"
#define NPUSIM_MATMUL_MEMORY threadgroup float room[npusim::kRoom];
#else
#include "kernels/metal/matmul/few_rows.h"
#define NPUSIM_MATMUL_MEMORY NPUSIM_LANES_MEMORY
#endif
#else
#include "kernels/metal/matmul/matmul_tile.h"
#define NPUSIM_MATMUL_MEMORY NPUSIM_TILE_MEMORY
#endif

kernel void npusim_kernel(device const npusim::T* a [[buffer(0)]],
                          device const npusim::T* b [[buffer(1)]],
                          device npusim::T* y [[buffer(2)]],
                          NPUSIM_PARTIAL_OPERAND uint group [[threadgroup_position_in_grid]],
                          uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  NPUSIM_MATMUL_MEMORY
  const int64_t tile = group % NPUSIM_TILES, part = group / NPUSIM_TILES;
#if NPUSIM_FEW
  const int64_t row = 0, column = 0;
#else
  const int64_t row = tile % NPUSIM_ROW_TILES * kTileRows;
  const int64_t column = tile / NPUSIM_ROW_TILES % NPUSIM_COLUMN_TILES * kTileColumns;
#endif
  int64_t item = tile / (NPUSIM_ROW_TILES * NPUSIM_COLUMN_TILES);
#if NPUSIM_SPLIT > 1
  const PartialOutput output = {partial_of(partial, part, item, NPUSIM_ITEMS), row, column};
#endif
#pragma unroll
  for (int d = 5; d >= 0; --d) {
    const int64_t i = item % params.batch[d];
    item /= params.batch[d];
    a += i * params.a_batch[d];
    b += i * params.b_batch[d];
    y += i * params.y_batch[d];
  }
#if NPUSIM_SPLIT == 1
  const MatmulOutput output = {y, row, column, params.m};
#endif
#if NPUSIM_FEW
#if NPUSIM_SWAPPED
  const FewSource source = {b, a};
#else
  const FewSource source = {a, b};
#endif
#if NPUSIM_SPLIT > 1
  const FewOutput<PartialOutput> few = {output};
#else
  const FewOutput<MatmulOutput> few = {output};
#endif
#if NPUSIM_ACROSS
  run_few_across(source, few, tile % NPUSIM_COLUMN_TILES, part_begin(part), part_end(part),
                 static_cast<int>(t), room);
#else
  run_few_rows(source, few, tile % NPUSIM_COLUMN_TILES, part_begin(part), part_end(part),
               static_cast<int>(t), NPUSIM_LANES);
#endif
#else
  const MatmulSource source = {a, b, row, column, params.m, params.k};
  run_tile(source, output, part_begin(part), part_end(part), static_cast<int>(t), staged_a,
           staged_b, stage);
#endif
}

#if NPUSIM_SPLIT > 1
// A thread an element of y.
kernel void npusim_combine(device npusim::T* y [[buffer(2)]],
                           NPUSIM_PARTIAL_OPERAND uint group [[threadgroup_position_in_grid]],
                           uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  const int64_t at = static_cast<int64_t>(group) * NPUSIM_COMBINE + t;
  if (at >= params.m * params.n * NPUSIM_ITEMS) return;
  int64_t item = at / (params.m * params.n), place = item;
#pragma unroll
  for (int d = 5; d >= 0; --d) {
    y += place % params.batch[d] * params.y_batch[d];
    place /= params.batch[d];
  }
  const MatmulOutput output = {y, 0, 0, params.m};
  combine_parts(output, partial, item, NPUSIM_ITEMS, at % (params.m * params.n));
}
#endif
