// y[b] = act(W · x[b] + bias + residual[b]), a linear along the second-to-last dimension of x: A is
// W, B is x as it lies, columns contiguous, and the bias goes along rows. Blocks of one item follow
// those of another in x.
//
// NPUSIM_PATH (common/paths.h) is TILE_MMA for operands of 16 bits, of which those of W are loaded
// before the launch waits for x, and TILE_FLOAT for others.
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/float_tile.h"
#include "kernels/cuda/matmul/mma_tile.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;
constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr int64_t kRowTiles = ceil_div(params.m, kTileRows);
constexpr bool kWeightsUnwritten = (unwritten_operands >> 1 & 1) != 0;

// One block's item and its place in y.
struct Place {
  const X* x;
  const W* w;
  int64_t item, row, column;

  explicit Place(void* const* operands)
      : w(static_cast<const W*>(operands[1])),
        item(blockIdx.x / kRowTiles),
        row(blockIdx.x % kRowTiles * kTileRows),
        column(static_cast<int64_t>(blockIdx.y) * kTileColumns) {
    x = static_cast<const X*>(operands[0]) + item * params.x_batch;
  }
  int64_t y_at(int64_t y_row) const { return item * params.y_batch + y_row * params.ldy; }
  int64_t r_at(int64_t y_row) const { return item * params.r_batch + y_row * params.ldr; }
};

#if NPUSIM_PATH == NPUSIM_PATH_TILE_MMA
constexpr bool kStridesAreWide =
    params.ldw % 8 == 0 && params.ldx % 8 == 0 && params.x_batch % 8 == 0 && params.n % 8 == 0;
constexpr bool kResultIsWide =
    params.ldy % 8 == 0 && params.y_batch % 8 == 0 &&
    (params.residual == 0 || (params.ldr % 8 == 0 && params.r_batch % 8 == 0));

struct Source {
  using Row = const W*;  // none outside
  using Column = int64_t;
  const Place& place;
  bool wide;

  Row a_row(int row) const {
    const int64_t at = place.row + row;
    return at < params.m ? place.w + at * params.ldw : nullptr;
  }
  Column b_column(int column) const { return place.column + column; }
  template <bool kWide>
  void load_a(Row row, int64_t k, unsigned to) const {
    copy_chunk<kWide>(to, row ? row + k : place.w, row ? params.k - k : 0);
  }
  template <bool kWide>
  void load_b(Column column, int64_t k, unsigned to) const {
    const bool exists = column < params.n && k < params.k;
    copy_chunk<kWide>(to, place.x + (exists ? column + k * params.ldx : 0),
                      exists ? params.n - column : 0);
  }
  void before_b() const {
    if constexpr (kWeightsUnwritten) wait_on_dependencies();
  }
};

inline void run(void* const* operands) {
  const Place place(operands);
  const bool wide = kStridesAreWide && is_aligned(operands[0], 16) && is_aligned(operands[1], 16);
  using BlockTile =
      MmaTile<W, kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, NPUSIM_STAGES, true>;
  VectorEpilogue epilogue(Epilogue(operands, 1));
  epilogue.wide = epilogue.wide && kResultIsWide;
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  BlockTile tile;
  tile.template run<First::kA>(Source{place, wide}, 0, params.k, shared_memory);
#pragma unroll
  for (int row = 0; row < 2 * BlockTile::kBlocksM; ++row) {
    const int64_t y_row = place.row + BlockTile::row_of(row / 2) + row % 2 * 8;
    const float added = y_row < params.m ? epilogue.epilogue.bias_at(y_row) : 0.0f;
    const float bias[8] = {added, added, added, added, added, added, added, added};
#pragma unroll
    for (int quad = 0; quad < static_cast<int>(ceil_div(BlockTile::kBlocksN, 4)); ++quad) {
      float sums[8];
      if (!eight_columns(tile, quad, row, sums) || y_row >= params.m) continue;
      const int t = threadIdx.x % 4;
      const int64_t column = place.column + BlockTile::column_of(quad * 4 + t) - t * 2;
      const int count = static_cast<int>(smaller<int64_t>(params.n - column, 8));
      if (count <= 0) continue;
      const int64_t r = place.r_at(y_row) + column;
      epilogue.finish(place.y_at(y_row) + column, r, count, epilogue.residual(r, count), bias,
                      sums);
    }
  }
}
#else
struct Source {
  struct Row {
    const W* at;  // none: outside
  };
  struct Column {
    const X* at;
  };
  const Place& place;
  bool wide;

  Row a_row(int row) const {
    const int64_t at = place.row + row;
    return {at < params.m ? place.w + at * params.ldw : nullptr};
  }
  Column b_column(int column) const {
    const int64_t at = place.column + column;
    return {at < params.n ? place.x + at : nullptr};
  }
  float a(Row row, int64_t k) const { return row.at ? to_float(row.at[k]) : 0.0f; }
  float b(Column column, int64_t k) const {
    return column.at ? to_float(column.at[k * params.ldx]) : 0.0f;
  }
  void a4(Row row, int64_t k, float (&v)[4]) const {
    load_four(row.at, k, row.at ? params.k : 0, wide, v);
  }
  void b4(Column column, int64_t k, float (&v)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = k + e < params.k ? b(column, k + e) : 0.0f;
  }
};

inline void run(void* const* operands) {
  wait_on_dependencies();
  const Place place(operands);
  const Epilogue epilogue(operands, 1);
  const bool wide = params.ldw % 4 == 0 && params.k % 4 == 0 && is_aligned(operands[1], 16);
  using BlockTile = FloatTile<kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, true, false>;
  BlockTile tile;
  tile.run(Source{place, wide}, 0, params.k, shared_memory);
#pragma unroll
  for (int i = 0; i < 2 * BlockTile::kBlocksM; ++i) {
    const int64_t row = place.row + BlockTile::row_of(i / 2) + i % 2 * 8;
    if (row >= params.m) continue;
    const float bias = epilogue.bias_at(row);
#pragma unroll
    for (int j = 0; j < 2 * BlockTile::kBlocksN; ++j) {
      const int64_t column = place.column + BlockTile::column_of(j / 2) + j % 2;
      if (column >= params.n) continue;
      const float residual = epilogue.residual_at(place.r_at(row) + column);
      const float sum = tile.sums[i / 2][j / 2][i % 2 * 2 + j % 2];
      epilogue.store(place.y_at(row) + column, Epilogue::finished(sum, bias, residual));
    }
  }
}
#endif

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}
