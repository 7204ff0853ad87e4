// A tile of a product by multiply-adds in registers, for what the tensor cores do not take: float64
// and integers, any strides. 256 threads in a square of 16 by 16.
//
// A `Source` gives elements as N, the number type that is summed, 0 outside:
//   Row a_row(int row), N a(Row, int64_t k); Column b_column(int column), N b(Column, int64_t k)
// kKContiguousA, kKContiguousB: whether neighbouring k, rather than rows or columns, are neighbours
// in memory.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

template <typename N, int kTileRows, int kTileColumns, bool kKContiguousA, bool kKContiguousB>
struct SimtTile {
  static constexpr int kDepth = 16, kThreads = 256;
  static constexpr int kRowsEach = kTileRows / 16, kColumnsEach = kTileColumns / 16;
  static constexpr int kRowPad = kTileRows + 4, kColumnPad = kTileColumns + 4;
  static_assert(kRowsEach % 4 == 0 && kColumnsEach % 4 == 0);

  struct alignas(16) Shared {
    N a[2][kDepth][kRowPad];
    N b[2][kDepth][kColumnPad];
  };

  N sums[kRowsEach][kColumnsEach];

  static int row_of(int i) {
    return i / 4 * (kTileRows / (kRowsEach / 4)) + threadIdx.x / 16 * 4 + i % 4;
  }
  static int column_of(int j) {
    return j / 4 * (kTileColumns / (kColumnsEach / 4)) + threadIdx.x % 16 * 4 + j % 4;
  }

  template <typename Source>
  void run(const Source& source, int64_t begin, int64_t end, Shared& shared) {
    ThreadMap<kTileRows, kKContiguousA> rows;
    ThreadMap<kTileColumns, kKContiguousB> columns;
    typename Source::Row row[rows.kHandles];
    typename Source::Column column[columns.kHandles];
#pragma unroll
    for (int i = 0; i < rows.kHandles; ++i) row[i] = source.a_row(rows.place(i));
#pragma unroll
    for (int i = 0; i < columns.kHandles; ++i) column[i] = source.b_column(columns.place(i));
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnsEach; ++j) sums[i][j] = N(0);
    }
    N a[rows.kLoads], b[columns.kLoads];
    const auto load = [&](int64_t k) {
#pragma unroll
      for (int i = 0; i < rows.kLoads; ++i) {
        const int64_t at = k + rows.depth(i);
        a[i] = at < end ? source.a(row[rows.handle(i)], at) : N(0);
      }
#pragma unroll
      for (int i = 0; i < columns.kLoads; ++i) {
        const int64_t at = k + columns.depth(i);
        b[i] = at < end ? source.b(column[columns.handle(i)], at) : N(0);
      }
    };
    if (begin < end) load(begin);
    int buffer = 0;
#pragma unroll 1
    for (int64_t k = begin; k < end; k += kDepth, buffer ^= 1) {
#pragma unroll
      for (int i = 0; i < rows.kLoads; ++i) shared.a[buffer][rows.depth(i)][rows.place(i)] = a[i];
#pragma unroll
      for (int i = 0; i < columns.kLoads; ++i) {
        shared.b[buffer][columns.depth(i)][columns.place(i)] = b[i];
      }
      __syncthreads();
      if (k + kDepth < end) load(k + kDepth);
      multiply(shared.a[buffer], shared.b[buffer]);
    }
  }

 private:
  // How the threads share the loads of a block: places (rows or columns) by depth.
  template <int kPlaces, bool kKContiguous>
  struct ThreadMap {
    static constexpr int kLoads = kPlaces * kDepth / kThreads;
    static constexpr int kHandles = kKContiguous ? kLoads : 1;
    static_assert(kThreads % kPlaces == 0);
    int handle(int i) const { return kKContiguous ? i : 0; }
    int place(int i) const {
      return kKContiguous ? threadIdx.x / kDepth + i * (kThreads / kDepth) : threadIdx.x % kPlaces;
    }
    int depth(int i) const {
      return kKContiguous ? threadIdx.x % kDepth : threadIdx.x / kPlaces + i * (kThreads / kPlaces);
    }
  };
  struct alignas(16) Four {
    N v[4];
  };

  void multiply(const N (&a)[kDepth][kRowPad], const N (&b)[kDepth][kColumnPad]) {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      Four rows[kRowsEach / 4], columns[kColumnsEach / 4];
#pragma unroll
      for (int i = 0; i < kRowsEach / 4; ++i) {
        rows[i] = *reinterpret_cast<const Four*>(&a[k][row_of(4 * i)]);
      }
#pragma unroll
      for (int j = 0; j < kColumnsEach / 4; ++j) {
        columns[j] = *reinterpret_cast<const Four*>(&b[k][column_of(4 * j)]);
      }
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnsEach; ++j) {
          sums[i][j] += rows[i / 4].v[i % 4] * columns[j / 4].v[j % 4];
        }
      }
    }
  }
};

}  // namespace npusim
