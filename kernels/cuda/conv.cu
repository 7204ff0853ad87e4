// Convolution of one to three dimensions, grouped, dilated or transposed, as a product: rows are
// output positions, K runs over taps and channels, B is what pack_b wrote: panels of 16 columns,
// [groups][ceil(n/16)][K][16].
//
// NPUSIM_PATH: 0 tiles on the tensor cores, for 16-bit operands whose channels are contiguous and
// come in eights; 1 tiles by multiply-adds. Both may cut K into NPUSIM_SPLIT spans, whose sums a
// second launch adds up in order.
#include "kernels/cuda/mma_epilogue.h"
#include "kernels/cuda/mma_plain.h"
#include "kernels/cuda/mma_tile.h"
#include "kernels/cuda/mma_window.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;
constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr bool kTransposed = params.transposed != 0;
constexpr int64_t kChannels = params.in_channels / params.groups;
constexpr int64_t kColumns = params.out_channels / params.groups;
constexpr int64_t kPanel = 16, kPanels = ceil_div(kColumns, kPanel);
constexpr int64_t kK = params.kernel[0] * params.kernel[1] * params.kernel[2] * kChannels;
constexpr int64_t kSpan = ceil_div(ceil_div(kK, NPUSIM_SPLIT), 64) * 64;

struct Source {
  struct Row {
    Position position;
    bool exists;
    Row() : position(0), exists(false) {}
    explicit Row(int64_t index)
        : position(index < kPositions ? index : 0), exists(index < kPositions) {}
  };
  using Column = const W*;  // of the panels, at K 0; none outside
  const X* x;               // channel 0 of the group
  const W* w;               // panel 0 of the group
  int64_t first_row, first_column, end;
  bool wide;

  Row a_row(int row) const { return Row(first_row + row); }
  Column b_column(int column) const {
    const int64_t at = first_column + column;
    return at < kPanels * kPanel ? w + at / kPanel * kK * kPanel + at % kPanel : nullptr;
  }
  const X* input(const Row& row, int64_t k) const {
    if (!row.exists || k >= end) return nullptr;
    const int at = static_cast<int>(k), channels = static_cast<int>(kChannels);
    const int64_t offset = input_offset<kTransposed>(row.position, at / channels);
    return offset == kPadding ? nullptr : x + offset + at % channels * params.x_strides[1];
  }
#if NPUSIM_PATH == 0
  template <bool kWide>
  void load_a(const Row& row, int64_t k, unsigned to) const {
    const X* from = input(row, k);
    copy_chunk<kWide>(to, from ? from : x, from ? 8 : 0);
  }
  template <bool kWide>
  void load_b(Column column, int64_t k, unsigned to) const {
    const bool exists = column && k < end;
    copy_chunk<kWide>(to, exists ? column + k * kPanel : w, exists ? 8 : 0);
  }
#else
  float a(const Row& row, int64_t k) const {
    const X* from = input(row, k);
    return from ? to_float(*from) : 0.0f;
  }
  float b(Column column, int64_t k) const { return column ? to_float(column[k * kPanel]) : 0.0f; }
#endif
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
  return {Epilogue(operands, 1), static_cast<float*>(operands[NPUSIM_ARGUMENTS - 1]), group};
}

extern __shared__ __align__(1024) unsigned char shared_memory[];

inline void run(void* const* operands) {
  const int64_t group = blockIdx.z % params.groups, begin = blockIdx.z / params.groups * kSpan;
  const int64_t end = smaller<int64_t>(begin + kSpan, kK);
  const bool wide = is_aligned(operands[0], 16) && is_aligned(operands[1], 16);
  const Source source{static_cast<const X*>(operands[0]) + group * kChannels * params.x_strides[1],
                      static_cast<const W*>(operands[1]) + group * kPanels * kK * kPanel,
                      static_cast<int64_t>(blockIdx.x) * kTileRows,
                      static_cast<int64_t>(blockIdx.y) * kTileColumns,
                      end,
                      wide && NPUSIM_WIDE};
  const Output output = output_of(operands, group);
#if NPUSIM_PATH == 0
  using Product =
      Tile<W, kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, NPUSIM_STAGES, true>;
  Product tile;
  tile.run(source, begin, end, shared_memory);
#pragma unroll
  for (int i = 0; i < Product::kBlocksM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < Product::kBlocksN; ++j) {
        output.store(source.first_row + Product::row_of(i) + half * 8,
                     source.first_column + Product::column_of(j), tile.sums[i][j][half * 2],
                     tile.sums[i][j][half * 2 + 1]);
      }
    }
  }
#else
  constexpr bool kKInside = params.x_strides[1] == 1 && kChannels >= 8;
  using Product = PlainTile<float, kTileRows, kTileColumns, kKInside, false>;
  Product tile;
  tile.run(source, begin, end, *reinterpret_cast<typename Product::Shared*>(shared_memory));
#pragma unroll
  for (int i = 0; i < Product::kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < Product::kColumnsEach; j += 2) {
      output.store(source.first_row + Product::row_of(i),
                   source.first_column + Product::column_of(j), tile.sums[i][j],
                   tile.sums[i][j + 1]);
    }
  }
#endif
}

// Adds up the spans of an output, in their order.
inline void combine(void* const* operands) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  constexpr int64_t kEach = params.groups * kPositions * kColumns;
  if (at >= kEach) return;
  const float* partial = static_cast<const float*>(operands[NPUSIM_ARGUMENTS - 1]);
  float sum = 0.0f;
#pragma unroll
  for (int64_t span = 0; span < NPUSIM_SPLIT; ++span) sum += partial[span * kEach + at];
  const int64_t column = at % kColumns, row = at / kColumns % kPositions;
  output_of(operands, at / kColumns / kPositions).finish(row, column, sum, 0.0f, false);
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}

#if NPUSIM_SPLIT > 1
extern "C" __global__ void __launch_bounds__(256) npusim_combine(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::combine(operands);
}
#endif
