// What `matmul` and `grouped_matmul` share: one block's tile of y, wherever its operands lie.
//
// NPUSIM_PATH (common/paths.h) is TILE_MMA for 16-bit operands whose K (for b: or n) is contiguous,
// TILE_FLOAT for others that are summed in float32, and TILE_SIMT for the rest, any strides.
#pragma once
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/matmul/float_tile.h"
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

#if NPUSIM_PATH != NPUSIM_PATH_TILE_SIMT
// Whether chunks of `count` elements along what is contiguous are whole, as far as strides tell.
constexpr bool strides_are_wide(int64_t count) {
  bool wide = params.a_m % count == 0 && (kNContiguous ? params.b_k : params.b_n) % count == 0;
  for (int d = 0; d < 6; ++d) {
    wide = wide && params.a_batch[d] % count == 0 && params.b_batch[d] % count == 0;
  }
  return wide && params.k % count == 0 && (!kNContiguous || params.n % count == 0);
}
#endif

#if NPUSIM_PATH == NPUSIM_PATH_TILE_MMA
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
using BlockTile = MmaTile<T, kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, NPUSIM_STAGES,
                          kNContiguous>;
#else
struct Source {
  struct Row {
    const T* at;  // none: outside
  };
  using Column = Row;
  const Place& place;
  bool wide;

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
  void a4(Row row, int64_t k, float (&v)[4]) const { four<params.a_k>(row, k, v); }
  void b4(Column column, int64_t k, float (&v)[4]) const { four<params.b_k>(column, k, v); }

 private:
  template <int64_t kStep>
  void four(Row row, int64_t k, float (&v)[4]) const {
    const int64_t end = row.at ? params.k : 0;
    if constexpr (kStep == 1) return load_four(row.at, k, end, wide, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = k + e < end ? number(row.at[(k + e) * kStep]) : 0.0f;
  }
};
constexpr bool kKContiguousA = params.a_k == 1 || params.a_m != 1;
constexpr bool kKContiguousB = params.b_n != 1;
#if NPUSIM_PATH == NPUSIM_PATH_TILE_FLOAT
using BlockTile = FloatTile<kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, kKContiguousA,
                            kKContiguousB>;
#else
using BlockTile = SimtTile<Number, kTileRows, kTileColumns, kKContiguousA, kKContiguousB>;
#endif
#endif

inline void store(const Place& place, int64_t row, int64_t column, Number sum) {
  if (row >= place.rows || column >= params.n) return;
  const auto alpha = static_cast<Number>(static_cast<Class>(params.alpha));
  place.y[row * params.y_m + column] = encode<T>(static_cast<Class>(sum * alpha));
}

#if NPUSIM_PATH == NPUSIM_PATH_TILE_SIMT
inline void multiply(const Place& place, void* const*) {
  BlockTile tile;
  tile.run(Source{place, false}, 0, place.depth,
           *reinterpret_cast<typename BlockTile::Shared*>(shared_memory));
#pragma unroll
  for (int i = 0; i < BlockTile::kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < BlockTile::kColumnsEach; ++j) {
      store(place, place.row + BlockTile::row_of(i), place.column + BlockTile::column_of(j),
            tile.sums[i][j]);
    }
  }
}
#else
inline void multiply(const Place& place, void* const* operands) {
  const bool wide = strides_are_wide(16 / sizeof(T)) && is_aligned(operands[0], 16) &&
                    is_aligned(operands[1], 16);
  BlockTile tile;
  tile.run(Source{place, wide}, 0, place.depth, shared_memory);
#pragma unroll
  for (int i = 0; i < BlockTile::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < BlockTile::kBlocksN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        store(place, place.row + BlockTile::row_of(i) + e / 2 * 8,
              place.column + BlockTile::column_of(j) + e % 2, tile.sums[i][j][e]);
      }
    }
  }
}
#endif

}  // namespace npusim
