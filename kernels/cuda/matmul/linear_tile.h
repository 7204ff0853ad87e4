// Tiles of linear and quantized_linear: which rows of W a tile has as its columns, and what becomes
// of its sums.
//
// A `Source` is that of mma_tile.h or float_tile.h, and has first_row, first_column, `float
// scale(int64_t row, int64_t column, int part)`, a factor of a sum, and kWeightOperands.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/float_tile.h"
#include "kernels/cuda/matmul/linear_params.h"
#include "kernels/cuda/matmul/mma_tile.h"

namespace npusim {

constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr int kOutputs = kTileColumns / kParts;  // columns of y of a tile
constexpr int64_t kSliceK = ceil_div(ceil_div(params.k, NPUSIM_SPLIT), 64) * 64;

// The column of y and the part of W that a column of a tile is for.
struct TileColumn {
  int64_t output;
  int part;
};
#if NPUSIM_TENSOR_CORES
using BlockTile =
    MmaTile<X, kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, NPUSIM_STAGES, false>;
#else
using BlockTile = FloatTile<kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, true, true>;
#endif

// Half of a warp's columns are of either part, so that a lane holds both sums of an output.
inline TileColumn tile_column(int column) {
  constexpr int kWarp = BlockTile::kWarpColumns, kHalf = kWarp / kParts;
  return {column / kWarp * kHalf + column % kHalf, column % kWarp / kHalf};
}

// Stores the sums of an output and its right neighbour, or leaves them to `npusim_combine`.
template <typename Source>
struct Output {
  const Source& source;
  Epilogue epilogue;
  float* partial;  // [NPUSIM_SPLIT][m][parts][n]
  int64_t end_column = params.n;

  void store(int64_t row, int64_t column, const float (&v)[kParts][2]) const {
    if (row >= params.m || column >= end_column) return;
    const bool both = column + 1 < end_column;
    if constexpr (NPUSIM_SPLIT > 1) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float* to = partial + ((blockIdx.z * params.m + row) * kParts + part) * params.n + column;
        to[0] = v[part][0];
        if (both) to[1] = v[part][1];
      }
      return;
    }
    float y[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !both) break;
      y[i] = finish(row, column + i, v[0][i], v[kParts - 1][i]);
    }
    epilogue.store_pair(row * params.ldy + column, y[0], y[1], both);
  }
  float finish(int64_t row, int64_t column, float first, float second) const {
    first *= source.scale(row, column, 0);
    if constexpr (kParts == 2) {
      second *= source.scale(row, column, 1);
      return epilogue.finish_gated(first, second, column, params.n);
    } else {
      return epilogue.finish(first, row * params.ldr, column);
    }
  }
};

// This block's slice of K.
inline int64_t slice_begin() {
  return blockIdx.z * kSliceK;
}
inline int64_t slice_end() {
  return smaller<int64_t>(slice_begin() + kSliceK, params.k);
}

// Computes a tile of y, without columns from `end_column` on.
template <typename Source>
void run_tile(const Source& source, void* const* operands, int64_t end_column = params.n) {
  const int64_t begin = slice_begin(), end = slice_end();
  const Output<Source> output{source, Epilogue(operands, Source::kWeightOperands),
                              static_cast<float*>(operands[NPUSIM_ARGUMENTS - 1]), end_column};
  BlockTile tile;
  tile.run(source, begin, end, shared_memory);
  constexpr int kBlocks = BlockTile::kBlocksN / kParts;
#pragma unroll
  for (int i = 0; i < BlockTile::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t column = tile_column(BlockTile::column_of(j)).output;
        float v[kParts][2];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          v[part][0] = tile.sums[i][j + part * kBlocks][half * 2];
          v[part][1] = tile.sums[i][j + part * kBlocks][half * 2 + 1];
        }
        output.store(source.first_row + BlockTile::row_of(i) + half * 8,
                     source.first_column + column, v);
      }
    }
  }
}

// Adds up the split-K slices of an output, in their order.
template <typename Source>
void combine(const Source& source, void* const* operands) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= params.m * params.n) return;
  const int64_t row = at / params.n, column = at % params.n;
  const float* partial = static_cast<const float*>(operands[NPUSIM_ARGUMENTS - 1]);
  float sums[kParts] = {};
#pragma unroll
  for (int64_t slice = 0; slice < NPUSIM_SPLIT; ++slice) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      sums[part] += partial[((slice * params.m + row) * kParts + part) * params.n + column];
    }
  }
  const Output<Source> output{source, Epilogue(operands, Source::kWeightOperands), nullptr};
  output.epilogue.store(row * params.ldy + column,
                        output.finish(row, column, sums[0], sums[kParts - 1]));
}

}  // namespace npusim
