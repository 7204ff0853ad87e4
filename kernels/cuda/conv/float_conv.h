// Convolution of float32, or of what the other paths do not take, any strides. K may be split into
// NPUSIM_SPLIT slices, whose partial sums a second launch adds up in order.
#pragma once
#include "kernels/cuda/conv/conv_operands.h"
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/float_tile.h"

namespace npusim {

constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr int64_t kSliceK = ceil_div(ceil_div(kK, NPUSIM_SPLIT), 64) * 64;

constexpr int64_t kParts = params.groups * kPhases;

// Where a position's window lies: by its first tap and marks where those fit, else found tap by
// tap.
constexpr bool kKnowsWindows = !kTransposed && kHasWindows;
template <bool kKnown>
struct Place {
  Window window;
  Place(int64_t index, const WindowSteps& steps) : window(window_at(index, steps)) {}
  int64_t offset(int tap) const {
    return has_tap(window, tap) ? window.first + tap_offset(tap) : kPadding;
  }
};
template <>
struct Place<false> {
  Position position;
  bool exists;
  Place(int64_t index, const WindowSteps&)
      : position(index < kPositions ? index : 0), exists(index < kPositions) {}
  int64_t offset(int tap) const {
    return exists ? input_offset<kTransposed>(position, tap) : kPadding;
  }
};

struct Source {
  struct Row : Place<kKnowsWindows> {
    Row() : Place<kKnowsWindows>(kPositions, WindowSteps()) {}
    using Place<kKnowsWindows>::Place;
  };
  using Column = const W*;
  static constexpr int64_t kStride = params.x_strides[1];
  const X* x;  // channel 0 of the group
  const W* w;  // of the group
  int64_t first_row, first_column, end;
  const Part& part;
  bool wide_x, wide_w;  // fours of channels, and of weights, lie on 16 bytes

  Row a_row(int row) const { return Row(first_row + row, part.steps); }
  Column b_column(int column) const { return Weights::column(w, first_column + column); }
  float a(const Row& row, int64_t k) const {
    if (k >= end) return 0.0f;
    const int at = static_cast<int>(k), channels = static_cast<int>(kChannels);
    const int64_t offset = row.offset(at / channels);
    return offset == kPadding ? 0.0f : to_float(x[offset + at % channels * kStride]);
  }
  float b(Column column, int64_t k) const {
    return k < end ? to_float(column[k * Weights::kStep]) : 0.0f;
  }
  // Fours of channels are of one tap, or of none.
  void a4(const Row& row, int64_t k, float (&v)[4]) const {
    if constexpr (kChannels % 4 != 0) {
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] = a(row, k + e);
      return;
    }
    const int at = static_cast<int>(k), channels = static_cast<int>(kChannels);
    const int64_t offset = k < end ? row.offset(at / channels) : kPadding;
    const bool exists = offset != kPadding;
    const X* from = x + (exists ? offset + at % channels * kStride : 0);
    if constexpr (kStride == 1) return load_four(from, 0, exists ? 4 : 0, wide_x, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = exists ? to_float(from[e * kStride]) : 0.0f;
  }
  void b4(Column column, int64_t k, float (&v)[4]) const {
    if constexpr (Weights::kStep == 1) return load_four(column, k, end, wide_w, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = b(column, k + e);
  }
};

// Whether strides leave fours of channels on 16 bytes.
constexpr bool strides_are_wide() {
  bool wide = kChannels % 4 == 0;
  for (int d = 0; d < 5; ++d) wide = wide && (d == 1 || params.x_strides[d] % 4 == 0);
  return wide;
}

// Finishes sums of a position and column of the group, or leaves them to `npusim_combine`.
struct Output {
  Epilogue epilogue;
  float* partial;  // [NPUSIM_SPLIT][parts][positions][columns]
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

inline Output output_of(void* const* operands, const Part& part) {
  return {part.moved(Epilogue(operands, 1, params.out_channels)),
          static_cast<float*>(operands[NPUSIM_ARGUMENTS - 1]), part.group};
}

inline void run(void* const* operands) {
  const Part part(blockIdx.z % kParts);
  const int64_t begin = blockIdx.z / kParts * kSliceK;
  const int64_t end = smaller<int64_t>(begin + kSliceK, kK);
  const X* x = static_cast<const X*>(operands[0]) + part.group * kChannels * params.x_strides[1];
  const W* w = static_cast<const W*>(operands[1]) + part.number * Weights::kAll * kK;
  const Source source{x,
                      w,
                      static_cast<int64_t>(blockIdx.x) * kTileRows,
                      static_cast<int64_t>(blockIdx.y) * kTileColumns,
                      end,
                      part,
                      strides_are_wide() && is_aligned(x, 16),
                      is_aligned(w, 16)};
  const Output output = output_of(operands, part);
  wait_on_dependencies();
  constexpr bool kKContiguous = params.x_strides[1] == 1 && kChannels >= 8;
  using BlockTile = FloatTile<kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, kKContiguous,
                              Weights::kStep == 1>;
  BlockTile tile;
  tile.run(source, begin, end, shared_memory);
#pragma unroll
  for (int i = 0; i < BlockTile::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < BlockTile::kBlocksN; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        output.store(source.first_row + BlockTile::row_of(i) + half * 8,
                     source.first_column + BlockTile::column_of(j), tile.sums[i][j][half * 2],
                     tile.sums[i][j][half * 2 + 1]);
      }
    }
  }
}

// Adds up the split-K slices of an output, in their order.
inline void combine(void* const* operands) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  constexpr int64_t kEach = kParts * kPositions * kColumns;
  if (at >= kEach) return;
  const float* partial = static_cast<const float*>(operands[NPUSIM_ARGUMENTS - 1]);
  float sum = 0.0f;
#pragma unroll
  for (int64_t slice = 0; slice < NPUSIM_SPLIT; ++slice) sum += partial[slice * kEach + at];
  const int64_t column = at % kColumns, row = at / kColumns % kPositions;
  output_of(operands, Part(at / kColumns / kPositions)).finish(row, column, sum, 0.0f, false);
}

}  // namespace npusim
