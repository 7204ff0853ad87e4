// The entries of linear, quantized_linear and their forms behind a norm, over a `Source` of W
// that stands before them.
#pragma once
#include "kernels/metal/matmul/linear_operands.h"

#if NPUSIM_FEW
#define NPUSIM_LINEAR_MEMORY NPUSIM_LANES_MEMORY
#else
#define NPUSIM_LINEAR_MEMORY NPUSIM_TILE_MEMORY
#endif
#define NPUSIM_LINEAR_SOURCE(row, column) {{x, NPUSIM_NORM_POINTER}, {w0, w1, w2, w3}, row, column}

kernel void npusim_kernel(NPUSIM_LINEAR_OPERANDS) {
  using namespace npusim;
  NPUSIM_LINEAR_MEMORY
  const int64_t tile = group % NPUSIM_TILES, part = group / NPUSIM_TILES;
#if NPUSIM_FEW
  const int64_t row = 0, column = 0;
#else
  const int64_t row = tile % NPUSIM_ROW_TILES * kTileRows;
  const int64_t column = tile / NPUSIM_ROW_TILES * kTileOutputs;
#endif
  const Source source = NPUSIM_LINEAR_SOURCE(row, column);
#if NPUSIM_SPLIT > 1
  const PartialOutput output = {partial_of(partial, part, 0, 1), row, column};
#else
  const LinearOutput<Source> output = {source, NPUSIM_EPILOGUE, row, column};
#endif
#if NPUSIM_FEW
  run_few_rows(source, output, tile, part_begin(part), part_end(part), static_cast<int>(t),
               NPUSIM_LANES);
#else
  run_tile(source, output, part_begin(part), part_end(part), static_cast<int>(t), staged_a,
           staged_b, stage);
#endif
}

#if NPUSIM_SPLIT > 1
// A thread an element of y.
kernel void npusim_combine(NPUSIM_LINEAR_OPERANDS) {
  using namespace npusim;
  const int64_t at = static_cast<int64_t>(group) * NPUSIM_COMBINE + t;
  if (at >= params.m * params.n) return;
  const Source source = NPUSIM_LINEAR_SOURCE(0, 0);
  const LinearOutput<Source> output = {source, NPUSIM_EPILOGUE, 0, 0};
  combine_parts(output, partial, 0, 1, at);
}
#endif
