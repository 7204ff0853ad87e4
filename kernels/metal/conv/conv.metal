// Convolution of one to three dimensions, grouped, dilated or transposed, as a product in tiles
// (matmul/tile.h): rows are output positions, K runs over taps, then channels, and columns are what
// pack_b wrote, [groups][16 ceil(n/16)][K].
#include "kernels/metal/common/four.h"
#include "kernels/metal/conv/window.h"
#include "kernels/metal/matmul/epilogue.h"
#include "kernels/metal/matmul/tile.h"

namespace npusim {

typedef Storage<params.x_dtype> X;
typedef Storage<params.w_dtype> Weight;
constant constexpr bool kTransposed = params.transposed != 0;
constant constexpr int kChannels = static_cast<int>(params.in_channels / params.groups);
constant constexpr int64_t kColumns = params.out_channels / params.groups;
constant constexpr int kK = kTaps * kChannels;

struct ConvSource {
  struct Row {
    Position position;
    bool exists;
  };
  struct Column {
    device const Weight* w;
    int end;
  };
  enum : bool { kAlongK = true, kBAlongK = true };
  device const X* x;       // channel 0 of the group
  device const Weight* w;  // of the group
  int64_t first_row, first_column;

  Row a_row(int row) const {
    const int64_t at = first_row + row;
    Row found;
    found.exists = at < kPositions;
    found.position = position_of(found.exists ? at : 0);
    return found;
  }
  Column b_column(int column) const {
    const int64_t at = first_column + column;
    Column found;
    found.end = at < kColumns ? kK : 0;
    found.w = w + (at < kColumns ? at : 0) * kK;
    return found;
  }
  Staged a(Row row, int64_t k) const {
    const int at = static_cast<int>(k);
    if (!row.exists || at >= kK) return static_cast<Staged>(0.0f);
    const int64_t offset = input_offset<kTransposed>(row.position, at / kChannels);
    if (offset == kPadding) return static_cast<Staged>(0.0f);
    return static_cast<Staged>(x[offset + at % kChannels * params.x_strides[1]]);
  }
  Staged b(Column column, int64_t k) const {
    return k < column.end ? static_cast<Staged>(column.w[k]) : static_cast<Staged>(0.0f);
  }
  void a_four(Row row, int64_t k, thread Staged* to) const {
    if (kChannels % 4 != 0) {
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = a(row, k + e);
      return;
    }
    // Four neighbours have one tap.
    const int at = static_cast<int>(k);
    int64_t offset = kPadding;
    if (row.exists && at < kK) offset = input_offset<kTransposed>(row.position, at / kChannels);
    device const X* from =
        x + (offset == kPadding ? 0 : offset + at % kChannels * params.x_strides[1]);
    if (params.x_strides[1] == 1) return load_four(from, offset == kPadding ? 0 : 4, to);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[e] = offset == kPadding ? static_cast<Staged>(0.0f)
                                 : static_cast<Staged>(from[e * params.x_strides[1]]);
    }
  }
  void b_four(Column column, int64_t k, thread Staged* to) const {
    load_four(column.w + k, column.end - k, to);
  }
};

struct ConvOutput {
  Epilogue epilogue;
  int64_t first_row, first_column, group;

  void put(int row, int column, float sum, float) const {
    const int64_t place = first_row + row;
    if (place >= kPositions || first_column + column >= kColumns) return;
    const int64_t channel = group * kColumns + first_column + column;
    const Position position = position_of(place);
    const int64_t r = params.residual != 0 ? r_offset(position) + channel : 0;
    epilogue.put(y_offset(position) + channel,
                 epilogue.finished(sum, r, channel, params.out_channels));
  }
};

}  // namespace npusim

kernel void npusim_kernel(device const npusim::X* x [[buffer(0)]],
                          device const npusim::Weight* w [[buffer(1)]],
                          NPUSIM_EPILOGUE_OPERANDS uint tile [[threadgroup_position_in_grid]],
                          uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  NPUSIM_TILE_MEMORY
  const int64_t row = tile % NPUSIM_ROW_TILES * kTileRows;
  const int64_t column = tile / NPUSIM_ROW_TILES % NPUSIM_COLUMN_TILES * kTileColumns;
  const int64_t group = tile / NPUSIM_ROW_TILES / NPUSIM_COLUMN_TILES;
  const ConvSource source = {x + group * kChannels * params.x_strides[1],
                             w + group * ((kColumns + 15) / 16 * 16) * kK, row, column};
  const ConvOutput output = {NPUSIM_EPILOGUE, row, column, group};
  run_tile(source, output, 0, kK, static_cast<int>(t), staged_a, staged_b, stage);
}
