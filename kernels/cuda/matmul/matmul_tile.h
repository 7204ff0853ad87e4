// What `matmul` and `grouped_matmul` share: one block's tile of y, wherever its operands lie.
//
// NPUSIM_PATH (common/paths.h) is TILE_MMA for 16-bit operands whose K (for b: or n) is contiguous,
// and TILE_SIMT for any dtype and strides.
#pragma once
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/matmul/mma_tile.h"
#include "kernels/cuda/matmul/simt_tile.h"

namespace npusim {

using T = Storage<params.dtype>;
constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr bool kNContiguous = params.b_k != 1;
constexpr bool kIsWhole = params.dtype > 3;  // an integer or bool
using Class = Compute<params.dtype>;

template <bool>
struct NumberOf {
  using type = Class;
};
template <>
struct NumberOf<true> {
  using type = uint64_t;  // wraps
};
using Number = typename NumberOf<kIsWhole>::type;

// One block's matrices and its place in them.
struct Place {
  const T *a, *b;
  T* y;
  int64_t row, column;      // of y, that the tile starts with
  int64_t rows = params.m;  // the tile has none after them
  int64_t depth = params.k;
};

#if NPUSIM_PATH == NPUSIM_PATH_TILE_MMA
constexpr bool strides_are_wide() {
  bool wide = params.a_m % 8 == 0 && (kNContiguous ? params.b_k : params.b_n) % 8 == 0;
  for (int d = 0; d < 6; ++d) {
    wide = wide && params.a_batch[d] % 8 == 0 && params.b_batch[d] % 8 == 0;
  }
  return wide && params.k % 8 == 0 && (!kNContiguous || params.n % 8 == 0);
}

struct Source {
  using Row = const T*;
  using Column = int64_t;
  const Place& place;
  bool wide;

  Row a_row(int row) const {
    const int64_t at = place.row + row;
    return at < place.rows ? place.a + at * params.a_m : nullptr;
  }
  Column b_column(int column) const { return place.column + column; }
  template <bool kWide>
  void load_a(Row row, int64_t k, unsigned to) const {
    copy_chunk<kWide>(to, row ? row + k : place.a, row ? params.k - k : 0);
  }
  template <bool kWide>
  void load_b(Column column, int64_t k, unsigned to) const {
    const bool exists = column < params.n && k < params.k;
    const T* from = place.b + (exists ? column * params.b_n + k * params.b_k : 0);
    const int64_t valid = kNContiguous ? params.n - column : params.k - k;
    copy_chunk<kWide>(to, from, exists ? valid : 0);
  }
};

inline void multiply(const Place& place, void* const* operands) {
  const bool wide =
      strides_are_wide() && is_aligned(operands[0], 16) && is_aligned(operands[1], 16);
  using BlockTile = MmaTile<T, kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N,
                            NPUSIM_STAGES, kNContiguous>;
  BlockTile tile;
  tile.run(Source{place, wide}, 0, place.depth, shared_memory);
#pragma unroll
  for (int i = 0; i < BlockTile::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < BlockTile::kBlocksN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t row = place.row + BlockTile::row_of(i) + e / 2 * 8;
        const int64_t column = place.column + BlockTile::column_of(j) + e % 2;
        if (row >= place.rows || column >= params.n) continue;
        place.y[row * params.y_m + column] = encode<T>(tile.sums[i][j][e] * params.alpha);
      }
    }
  }
}
#else
struct Source {
  struct Row {
    const T* at;  // none: outside
  };
  using Column = Row;
  const Place& place;

  static Number number(T x) { return static_cast<Number>(decode<Class>(x)); }
  Row a_row(int row) const {
    const int64_t at = place.row + row;
    return {at < place.rows ? place.a + at * params.a_m : nullptr};
  }
  Column b_column(int column) const {
    const int64_t at = place.column + column;
    return {at < params.n ? place.b + at * params.b_n : nullptr};
  }
  Number a(Row row, int64_t k) const { return row.at ? number(row.at[k * params.a_k]) : Number(0); }
  Number b(Column column, int64_t k) const {
    return column.at ? number(column.at[k * params.b_k]) : Number(0);
  }
};

inline void multiply(const Place& place, void* const* operands) {
  constexpr bool kKContiguousA = params.a_k == 1 || params.a_m != 1;
  constexpr bool kKContiguousB = params.b_n != 1;
  using BlockTile = SimtTile<Number, kTileRows, kTileColumns, kKContiguousA, kKContiguousB>;
  BlockTile tile;
  tile.run(Source{place}, 0, place.depth,
           *reinterpret_cast<typename BlockTile::Shared*>(shared_memory));
#pragma unroll
  for (int i = 0; i < BlockTile::kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < BlockTile::kColumnsEach; ++j) {
      const int64_t row = place.row + BlockTile::row_of(i);
      const int64_t column = place.column + BlockTile::column_of(j);
      if (row >= place.rows || column >= params.n) continue;
      const auto alpha = static_cast<Number>(static_cast<Class>(params.alpha));
      place.y[row * params.y_m + column] = encode<T>(static_cast<Class>(tile.sums[i][j] * alpha));
    }
  }
}
#endif

}  // namespace npusim
