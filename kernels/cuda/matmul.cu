// y = alpha * a·b over batches, for operands that exist only at run time.
//
// NPUSIM_PATH: 0 tiles on the tensor cores, for 16-bit operands whose K (for b: or n) is
// contiguous; 1 tiles by multiply-adds, for any dtype and strides. Blocks of one batch item follow
// those of another in x.
#include "kernels/cuda/mma_plain.h"
#include "kernels/cuda/mma_tile.h"

namespace npusim {

using T = Storage<params.dtype>;
constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr int64_t kRowTiles = ceil_div(params.m, kTileRows);
constexpr bool kColumnsInside = params.b_k != 1;
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

// One block's batch item and place in it.
struct Place {
  const T *a, *b;
  T* y;
  int64_t row, column;

  explicit Place(void* const* operands)
      : a(static_cast<const T*>(operands[0])),
        b(static_cast<const T*>(operands[1])),
        y(static_cast<T*>(operands[2])),
        row(blockIdx.x % kRowTiles * kTileRows),
        column(static_cast<int64_t>(blockIdx.y) * kTileColumns) {
    int64_t item = blockIdx.x / kRowTiles;
#pragma unroll
    for (int d = 5; d >= 0; --d) {
      const int64_t i = item % params.batch[d];
      item /= params.batch[d];
      a += i * params.a_batch[d];
      b += i * params.b_batch[d];
      y += i * params.y_batch[d];
    }
  }
};

extern __shared__ __align__(1024) unsigned char shared_memory[];

#if NPUSIM_PATH == 0
constexpr bool strides_are_wide() {
  bool wide = params.a_m % 8 == 0 && (kColumnsInside ? params.b_k : params.b_n) % 8 == 0;
  for (int d = 0; d < 6; ++d) {
    wide = wide && params.a_batch[d] % 8 == 0 && params.b_batch[d] % 8 == 0;
  }
  return wide && params.k % 8 == 0 && (!kColumnsInside || params.n % 8 == 0);
}

struct Source {
  using Row = const T*;
  using Column = int64_t;
  const Place& place;
  bool wide;

  Row a_row(int row) const {
    const int64_t at = place.row + row;
    return at < params.m ? place.a + at * params.a_m : nullptr;
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
    const int64_t valid = kColumnsInside ? params.n - column : params.k - k;
    copy_chunk<kWide>(to, from, exists ? valid : 0);
  }
};

inline void run(void* const* operands) {
  const Place place(operands);
  const bool wide =
      strides_are_wide() && is_aligned(operands[0], 16) && is_aligned(operands[1], 16);
  using Product = Tile<T, kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, NPUSIM_STAGES,
                       kColumnsInside>;
  Product tile;
  tile.run(Source{place, wide}, 0, params.k, shared_memory);
#pragma unroll
  for (int i = 0; i < Product::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < Product::kBlocksN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t row = place.row + Product::row_of(i) + e / 2 * 8;
        const int64_t column = place.column + Product::column_of(j) + e % 2;
        if (row >= params.m || column >= params.n) continue;
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
    return {at < params.m ? place.a + at * params.a_m : nullptr};
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

inline void run(void* const* operands) {
  const Place place(operands);
  constexpr bool kKInsideA = params.a_k == 1 || params.a_m != 1;
  constexpr bool kKInsideB = params.b_n != 1;
  using Product = PlainTile<Number, kTileRows, kTileColumns, kKInsideA, kKInsideB>;
  Product tile;
  tile.run(Source{place}, 0, params.k, *reinterpret_cast<typename Product::Shared*>(shared_memory));
#pragma unroll
  for (int i = 0; i < Product::kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < Product::kColumnsEach; ++j) {
      const int64_t row = place.row + Product::row_of(i);
      const int64_t column = place.column + Product::column_of(j);
      if (row >= params.m || column >= params.n) continue;
      const auto alpha = static_cast<Number>(static_cast<Class>(params.alpha));
      place.y[row * params.y_m + column] = encode<T>(static_cast<Class>(tile.sums[i][j] * alpha));
    }
  }
}
#endif

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}
