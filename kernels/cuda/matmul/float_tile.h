// A tile of a product of float32 numbers on the tensor cores, each in parts (float_parts.h). Sums
// that are not finite are added up again, one product after another.
//
// A `Source` gives four elements from a k on, 0 outside, and single ones, which are the same:
//   Row a_row(int row), void a4(Row, int64_t k, float (&)[4]), float a(Row, int64_t k)
//   Column b_column(int column), b4 and b likewise
// kKContiguousA, kKContiguousB: whether neighbouring k, rather than rows or columns, are neighbours
// in memory. Sums lie over the lanes as those of mma_tile.h do, by wgmma on sm_90a.
#pragma once
#include "kernels/cuda/common/float_parts.h"
#include "kernels/cuda/common/wgmma.h"

namespace npusim {

template <int kTileRows, int kTileColumns, int kWarpsM, int kWarpsN, bool kKContiguousA,
          bool kKContiguousB>
struct FloatTile {
  static constexpr int kDepth = 16, kThreads = kWarpsM * kWarpsN * 32;
  // A warpgroup has whole rows of the tile, 64 of them; a warp has blocks of 16 by 8.
  static constexpr bool kGroups = kHasWgmma && kTileRows == kThreads / 2;
  static constexpr int kWarpRows = kTileRows / kWarpsM;
  static constexpr int kWarpColumns = kGroups ? kTileColumns : kTileColumns / kWarpsN;
  static constexpr int kBlocksM = kGroups ? 1 : kWarpRows / 16, kBlocksN = kWarpColumns / 8;
  // A row or column has its parts beside each other, 32 bytes each, and room for a fourth.
  static constexpr int kRowBytes = 128, kABytes = kTileRows * kRowBytes;
  static constexpr int kStageBytes = kABytes + kTileColumns * kRowBytes;
  static_assert(kBlocksM >= 1 && kBlocksN % 2 == 0 && kBlocksM * kBlocksN <= 16);

  float sums[kBlocksM][kBlocksN][4];

  // Where block (i, j) of this warp's sums lies in the tile: the lane's first row and column.
  static int row_of(int i) {
    return (kGroups ? warp() * 16 : warp() / kWarpsN * kWarpRows + i * 16) + lane() / 4;
  }
  static int column_of(int j) {
    return (kGroups ? 0 : warp() % kWarpsN * kWarpColumns) + j * 8 + lane() % 4 * 2;
  }

  template <typename Source>
  void run(const Source& source, int64_t begin, int64_t end, void* shared) {
    const unsigned base = shared_address(shared);
    ThreadMap<kTileRows, kKContiguousA> rows;
    ThreadMap<kTileColumns, kKContiguousB> columns;
    typename Source::Row row[rows.kHandles];
    typename Source::Column column[columns.kHandles];
#pragma unroll
    for (int i = 0; i < rows.kHandles; ++i) row[i] = source.a_row(rows.place(i));
#pragma unroll
    for (int i = 0; i < columns.kHandles; ++i) column[i] = source.b_column(columns.place(i));
#pragma unroll
    for (int i = 0; i < kBlocksM * kBlocksN * 4; ++i)
      sums[i / 4 / kBlocksN][i / 4 % kBlocksN][i % 4] = 0.0f;
    float a[rows.kLoads][4], b[columns.kLoads][4];
    const auto load = [&](int64_t k) {
#pragma unroll
      for (int i = 0; i < rows.kLoads; ++i) source.a4(row[rows.handle(i)], k + rows.depth(i), a[i]);
#pragma unroll
      for (int i = 0; i < columns.kLoads; ++i) {
        source.b4(column[columns.handle(i)], k + columns.depth(i), b[i]);
      }
    };
    const auto store = [&](unsigned at) {
#pragma unroll
      for (int i = 0; i < rows.kLoads; ++i) {
        store_parts(at, rows.place(i), rows.depth(i), a[i]);
      }
#pragma unroll
      for (int i = 0; i < columns.kLoads; ++i) {
        store_parts(at + kABytes, columns.place(i), columns.depth(i), b[i]);
      }
      // Before the next loads, for which it would wait.
      if constexpr (kGroups) fence_proxy_async_shared();
    };
    if (begin < end) {
      load(begin);
      store(base);
      if (begin + kDepth < end) load(begin + kDepth);
    }
    unsigned at = base;
#pragma unroll 1
    for (int64_t k = begin; k < end; k += kDepth) {
      const unsigned next = 2 * base + kStageBytes - at;
      const auto load_ahead = [&] {
        if (k + kDepth < end) store(next);
        if (k + 2 * kDepth < end) load(k + 2 * kDepth);
      };
      __syncthreads();
      if constexpr (kGroups) {
        multiply_in_groups(at, load_ahead);
      } else {
        load_ahead();
        multiply(at);
      }
      at = next;
    }
    add_up_again(source, begin, end);
  }

 private:
  static int lane() { return threadIdx.x % 32; }
  static int warp() { return threadIdx.x / 32; }

  // How the threads share the loads of a block of K, four elements each: places (rows or columns)
  // by depth.
  template <int kPlaces, bool kKContiguous>
  struct ThreadMap {
    static constexpr int kFours = kDepth / 4, kLoads = kPlaces * kFours / kThreads;
    static constexpr int kHandles = kKContiguous ? kLoads : 1;
    static_assert(kLoads >= 1 && kThreads % kPlaces == 0);
    int handle(int i) const { return kKContiguous ? i : 0; }
    // Of eight rows whose parts a warp stores, each half is in all banks: the even rows, the odd.
    int place(int i) const {
      if constexpr (!kKContiguous) return threadIdx.x % kPlaces;
      const int at = threadIdx.x / kFours;
      return i * (kThreads / kFours) + (at & ~7) + (at & 3) * 2 + (at >> 2 & 1);
    }
    int depth(int i) const {
      return 4 * (kKContiguous ? threadIdx.x % kFours
                               : threadIdx.x / kPlaces + i * (kThreads / kPlaces));
    }
  };

  // Where eight elements of a row or column lie: those of eight rows beside each other are in
  // different banks (128-byte swizzle).
  static unsigned chunk_at(int place, int chunk) {
    return place * kRowBytes + ((chunk ^ (place & 7)) << 4);
  }
  static void store_parts(unsigned at, int place, int depth, const float (&v)[4]) {
    unsigned low[kFloatParts], high[kFloatParts];
    split_pair(v[0], v[1], low);
    split_pair(v[2], v[3], high);
#pragma unroll
    for (int p = 0; p < kFloatParts; ++p) {
      store_shared(at + chunk_at(place, 2 * p + depth / 8) + depth % 8 * 2, __uint_as_float(low[p]),
                   __uint_as_float(high[p]));
    }
  }

  // `meanwhile` runs beside the tensor cores.
  template <typename F>
  void multiply_in_groups(unsigned at, const F& meanwhile) {
    const unsigned rows = at + warp() / 4 * (64 * kRowBytes), columns = at + kABytes;
    float products[kBlocksN][4];
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      const auto a = matrix_descriptor(rows + kPartProducts[i][0] * 32);
      const auto b = matrix_descriptor(columns + kPartProducts[i][1] * 32);
      if (i == 0) {
        wgmma_from_zero<bfloat16>(products, a, b);
      } else {
        wgmma<bfloat16>(products, a, b);
      }
    }
    warpgroup_commit();
    meanwhile();
    warpgroup_wait<0>();
    warpgroup_fence_operand(products);
#pragma unroll
    for (int i = 0; i < kBlocksN * 4; ++i) sums[0][i / 4][i % 4] += products[i / 4][i % 4];
  }

  void multiply(unsigned at) {
    const int first_row = warp() / kWarpsN * kWarpRows + lane() % 16;
    const int first_column = warp() % kWarpsN * kWarpColumns + lane() / 16 * 8 + lane() % 8;
    unsigned b[kFloatParts][kBlocksN / 2][4];
#pragma unroll
    for (int p = 0; p < kFloatParts; ++p) {
#pragma unroll
      for (int j = 0; j < kBlocksN / 2; ++j) {
        ldmatrix(b[p][j], at + kABytes + chunk_at(first_column + j * 16, 2 * p + lane() / 8 % 2));
      }
    }
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
      unsigned a[kFloatParts][4];
#pragma unroll
      for (int p = 0; p < kFloatParts; ++p) {
        ldmatrix(a[p], at + chunk_at(first_row + i * 16, 2 * p + lane() / 16));
      }
      float products[kBlocksN][4];
      multiply_parts(a, b, products);
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] += products[j][e];
      }
    }
  }

  // Adds up those of this lane's sums that are not finite one product after another.
  template <typename Source>
  void add_up_again(const Source& source, int64_t begin, int64_t end) {
    constexpr int kSums = kBlocksM * kBlocksN * 4;
    uint64_t odd = 0;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float sum = sums[i / 4 / kBlocksN][i / 4 % kBlocksN][i % 4];
      odd |= static_cast<uint64_t>(!is_finite(sum)) << i;
    }
#pragma unroll 1
    for (int at = 0; odd != 0; ++at, odd >>= 1) {
      if ((odd & 1) == 0) continue;
      const int e = at % 4, block = at / 4;
      const auto row = source.a_row(row_of(block / kBlocksN) + e / 2 * 8);
      const auto column = source.b_column(column_of(block % kBlocksN) + e % 2);
      float sum = 0.0f;
#pragma unroll 1
      for (int64_t k = begin; k < end; ++k) sum += source.a(row, k) * source.b(column, k);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        float& own = sums[i / 4 / kBlocksN][i / 4 % kBlocksN][i % 4];
        own = i == at ? sum : own;
      }
    }
  }
};

}  // namespace npusim
