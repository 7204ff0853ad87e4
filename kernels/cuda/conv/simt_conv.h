// Convolution by multiply-adds, for any dtype and any strides. K may be split into
// NPUSIM_SPLIT slices, whose partial sums a second launch adds up in order.
#pragma once
#include "kernels/cuda/conv/conv_operands.h"
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/simt_tile.h"

namespace npusim {

constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr int64_t kSliceK = ceil_div(ceil_div(kK, NPUSIM_SPLIT), 64) * 64;

struct Source {
  struct Row {
    Position position;
    bool exists;
    Row() : position(0), exists(false) {}
    explicit Row(int64_t index)
        : position(index < kPositions ? index : 0), exists(index < kPositions) {}
  };
  using Column = const W*;
  const X* x;  // channel 0 of the group
  const W* w;  // of the group
  int64_t first_row, first_column, end;

  Row a_row(int row) const { return Row(first_row + row); }
  Column b_column(int column) const { return Weights::column(w, first_column + column); }
  float a(const Row& row, int64_t k) const {
    if (!row.exists || k >= end) return 0.0f;
    const int at = static_cast<int>(k), channels = static_cast<int>(kChannels);
    const int64_t offset = input_offset<kTransposed>(row.position, at / channels);
    if (offset == kPadding) return 0.0f;
    return to_float(x[offset + at % channels * params.x_strides[1]]);
  }
  float b(Column column, int64_t k) const { return to_float(column[k * Weights::kStep]); }
};

// Finishes sums of a position and column of the group, or leaves them to `npusim_combine`.
struct Output {
  Epilogue epilogue;
  float* partial;  // [NPUSIM_SPLIT][groups][positions][columns]
  int64_t group;

  void finish(int64_t row, int64_t column, float first, float second, bool both) const {
    const Position position(row);
    const int64_t channel = group * kColumns + column;
    const int64_t r = params.residual ? position.offset(params.r_strides) : 0;
    first = epilogue.finish(first, r, channel);
    if (both) second = epilogue.finish(second, r, channel + 1);
    epilogue.store_pair(position.offset(params.y_strides) + channel, first, second, both);
  }
  void store(int64_t row, int64_t column, float first, float second) const {
    if (row >= kPositions || column >= kColumns) return;
    const bool both = column + 1 < kColumns;
    if constexpr (NPUSIM_SPLIT > 1) {
      float* to = partial + (blockIdx.z * kPositions + row) * kColumns + column;
      to[0] = first;
      if (both) to[1] = second;
    } else {
      finish(row, column, first, second, both);
    }
  }
};

inline Output output_of(void* const* operands, int64_t group) {
  return {Epilogue(operands, 1, params.out_channels),
          static_cast<float*>(operands[NPUSIM_ARGUMENTS - 1]), group};
}

inline void run(void* const* operands) {
  const int64_t group = blockIdx.z % params.groups, begin = blockIdx.z / params.groups * kSliceK;
  const int64_t end = smaller<int64_t>(begin + kSliceK, kK);
  const Source source{static_cast<const X*>(operands[0]) + group * kChannels * params.x_strides[1],
                      static_cast<const W*>(operands[1]) + group * Weights::kAll * kK,
                      static_cast<int64_t>(blockIdx.x) * kTileRows,
                      static_cast<int64_t>(blockIdx.y) * kTileColumns, end};
  const Output output = output_of(operands, group);
  wait_on_dependencies();
  constexpr bool kKContiguous = params.x_strides[1] == 1 && kChannels >= 8;
  using BlockTile = SimtTile<float, kTileRows, kTileColumns, kKContiguous, Weights::kStep == 1>;
  BlockTile tile;
  tile.run(source, begin, end, *reinterpret_cast<typename BlockTile::Shared*>(shared_memory));
#pragma unroll
  for (int i = 0; i < BlockTile::kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < BlockTile::kColumnsEach; j += 2) {
      output.store(source.first_row + BlockTile::row_of(i),
                   source.first_column + BlockTile::column_of(j), tile.sums[i][j],
                   tile.sums[i][j + 1]);
    }
  }
}

// Adds up the split-K slices of an output, in their order.
inline void combine(void* const* operands) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  constexpr int64_t kEach = params.groups * kPositions * kColumns;
  if (at >= kEach) return;
  const float* partial = static_cast<const float*>(operands[NPUSIM_ARGUMENTS - 1]);
  float sum = 0.0f;
#pragma unroll
  for (int64_t slice = 0; slice < NPUSIM_SPLIT; ++slice) sum += partial[slice * kEach + at];
  const int64_t column = at % kColumns, row = at / kColumns % kPositions;
  output_of(operands, at / kColumns / kPositions).finish(row, column, sum, 0.0f, false);
}

}  // namespace npusim
