// A tile of a product, NPUSIM_TILE_ROWS by NPUSIM_TILE_COLUMNS sums, by 128 threads: NPUSIM_DEPTH
// columns of both operands at a time go through threadgroup memory as elements of dtype
// NPUSIM_STAGED. Four SIMD groups multiply them as matrices of 8 by 8 where the family has these
// (NPUSIM_MATRICES); elsewhere, and for integers, each thread has sums of its own.
//
// A `Source` says where a tile's operands lie:
//   Row, Column     what it knows of a row of the first and a column of the second operand
//   a_row, b_column these, by their place in the tile, whether or not they exist
//   a_four, b_four  their elements k … k + 3, zeros outside
//   a, b            one of them
//   kAlongK, kBAlongK   whether neighbours in K are neighbours in memory, or else rows, columns
#pragma once
#include "kernels/metal/matmul/sums.h"

#define NPUSIM_MATRICES (NPUSIM_HAS_SIMDGROUP_MATRIX && NPUSIM_STAGED < 3)

namespace npusim {

enum : int {
  kTileRows = NPUSIM_TILE_ROWS,
  kTileColumns = NPUSIM_TILE_COLUMNS,
  kDepth = NPUSIM_DEPTH,
  kThreads = 128,
  kPitch = kDepth + (sizeof(Staged) == 2   ? 8
                     : sizeof(Staged) == 4 ? 4
                                           : 1),  // of a staged row
#if NPUSIM_MATRICES
  kGroupRows = kTileRows / 2,  // of a SIMD group
  kSpan = kTileColumns / 2,    // its columns
  kStage = 4 * 8 * kSpan,
#else
  kGroupRows = kTileRows,
  kSpan = kTileColumns,
  kStage = 1,
#endif
  kOutputs = kSpan / kParts,  // columns of y for a span of the tile's
  kTileOutputs = kTileColumns / kParts
};

// Of each span of columns, the first kOutputs are of part 0, the next of part 1: what makes one
// element of y meets in one SIMD group, or one thread.
inline int output_of(int column) {
  return column / kSpan * kOutputs + column % kSpan % kOutputs;
}
inline int part_of(int column) {
  return column % kSpan / kOutputs;
}

// What a thread copies to threadgroup memory in each step of K.
template <typename Source>
struct Loader {
  enum : int {
    kAlong = Source::kAlongK,
    kBAlong = Source::kBAlongK,
    kFours = kDepth / 4,
    kRows = kAlong ? kTileRows * kFours / kThreads : 1,
    kColumns = kBAlong ? kTileColumns * kFours / kThreads : 1
  };
  typename Source::Row rows[kRows];
  typename Source::Column columns[kColumns];

  Loader(thread const Source& source, int t) {
    for (int i = 0; i < kRows; ++i) rows[i] = source.a_row(row_of(t, i));
    for (int i = 0; i < kColumns; ++i) columns[i] = source.b_column(column_of(t, i));
  }
  static int row_of(int t, int i) {
    return kAlong ? t / kFours + i * (kThreads / kFours) : t % kTileRows;
  }
  static int column_of(int t, int i) {
    return kBAlong ? t / kFours + i * (kThreads / kFours) : t % kTileColumns;
  }
  void load(thread const Source& source, int64_t k, int t, threadgroup Staged* a,
            threadgroup Staged* b) const {
    Staged four[4];
    if (kAlong) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        source.a_four(rows[i], k + t % kFours * 4, four);
        threadgroup Staged* to = a + row_of(t, i) * kPitch + t % kFours * 4;
        for (int e = 0; e < 4; ++e) to[e] = four[e];
      }
    } else {
      for (int at = t / kTileRows; at < kDepth; at += kThreads / kTileRows) {
        a[row_of(t, 0) * kPitch + at] = source.a(rows[0], k + at);
      }
    }
    if (kBAlong) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        source.b_four(columns[i], k + t % kFours * 4, four);
        threadgroup Staged* to = b + column_of(t, i) * kPitch + t % kFours * 4;
        for (int e = 0; e < 4; ++e) to[e] = four[e];
      }
    } else {
      for (int at = t / kTileColumns; at < kDepth; at += kThreads / kTileColumns) {
        b[column_of(t, 0) * kPitch + at] = source.b(columns[0], k + at);
      }
    }
  }
};

#if NPUSIM_MATRICES
struct Product {
  enum : int { kDown = kGroupRows / 8, kAcross = kSpan / 8 };
  metal::simdgroup_matrix<float, 8, 8> sums[kDown][kAcross];

  void clear() {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        sums[i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
    }
  }
  void add(threadgroup const Staged* a, threadgroup const Staged* b, int t) {
    using namespace metal;
    threadgroup const Staged* from_a = a + t / 64 * kGroupRows * kPitch;
    threadgroup const Staged* from_b = b + t / 32 % 2 * kSpan * kPitch;
    simdgroup_matrix<Staged, 8, 8> left[kDown], right[kAcross];
#pragma unroll
    for (int step = 0; step < kDepth; step += 8) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        simdgroup_load(left[i], from_a + i * 8 * kPitch + step, kPitch);
      }
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        simdgroup_load(right[j], from_b + j * 8 * kPitch + step, kPitch, ulong2(0, 0), true);
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
          simdgroup_multiply_accumulate(sums[i][j], left[i], right[j], sums[i][j]);
        }
      }
    }
  }
  // Gives all sums to `output.put(row, column of y, sum, second sum)`, by way of `stage`.
  template <typename Output>
  void finish(thread const Output& output, threadgroup float* stage, int t) const {
    threadgroup float* own = stage + t / 32 * 8 * kSpan;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) metal::simdgroup_store(sums[i][j], own + j * 8, kSpan);
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
      for (int at = t % 32; at < 8 * kOutputs; at += 32) {
        const int row = at / kOutputs, column = at % kOutputs;
        output.put(t / 64 * kGroupRows + i * 8 + row, t / 32 % 2 * kOutputs + column,
                   own[row * kSpan + column], own[row * kSpan + column + (kSpan - kOutputs)]);
      }
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
  }
};
#else
struct Product {
  enum : int { kDown = kTileRows / 8, kAcross = kTileColumns / 16, kEach = kAcross / kParts };
  Sum sums[kDown][kAcross];

  void clear() {
    for (int i = 0; i < kDown; ++i) {
      for (int j = 0; j < kAcross; ++j) sums[i][j] = 0;
    }
  }
  void add(threadgroup const Staged* a, threadgroup const Staged* b, int t) {
    Sum left[kDown], right[kAcross];
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) left[i] = static_cast<Sum>(a[(t / 16 + i * 8) * kPitch + k]);
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        right[j] = static_cast<Sum>(b[(t % 16 + j * 16) * kPitch + k]);
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) sums[i][j] += left[i] * right[j];
      }
    }
  }
  template <typename Output>
  void finish(thread const Output& output, threadgroup Sum*, int t) const {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        output.put(t / 16 + i * 8, t % 16 + j * 16, sums[i][j], sums[i][j + kAcross - kEach]);
      }
    }
  }
};
#endif

// Memory of an entry that computes a tile.
#define NPUSIM_TILE_MEMORY                                                    \
  threadgroup npusim::Staged staged_a[npusim::kTileRows * npusim::kPitch];    \
  threadgroup npusim::Staged staged_b[npusim::kTileColumns * npusim::kPitch]; \
  threadgroup npusim::Sum stage[npusim::kStage];

// Computes the tile of a source over K from `begin`, a multiple of kDepth, to `end`, another one or
// where its rows end.
template <typename Source, typename Output>
inline void run_tile(thread const Source& source, thread const Output& output, int64_t begin,
                     int64_t end, int t, threadgroup Staged* a, threadgroup Staged* b,
                     threadgroup Sum* stage) {
  const Loader<Source> loader(source, t);
  Product product;
  product.clear();
  for (int64_t k = begin; k < end; k += kDepth) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    loader.load(source, k, t, a, b);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    product.add(a, b, t);
  }
  product.finish(output, stage, t);
}

}  // namespace npusim
