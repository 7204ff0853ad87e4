// A block's tile of a matrix product of 16-bit operands on the tensor cores: rows of A by columns
// of B. Blocks of K, 64 elements each, pass through a multistage pipeline in shared memory, loaded
// by cp.async.
//
// A `Source` tells where operands lie:
//   Row a_row(int row)           what stays the same of a row of the tile
//   void load_a<kWide>(Row, int64_t k, unsigned to)
//                                its eight elements from k on, to shared memory
//   Column b_column(int column), void load_b<kWide>(Column, int64_t k, unsigned to)
//                                likewise for B
//   bool wide                    every chunk lies on 16 bytes, and is whole or empty
// and has, with First::kB,
//   void before_a()              called when the first loads of B have been issued, before A's
//   void after_prologue()        called after those of A; it may copy to shared memory, for the end
// or, with First::kA,
//   void before_b()              called when the first loads of A have been issued, before B's
// load_b takes eight elements along K of one column, or with kNContiguous eight columns at one k.
// A row of 64 elements is eight chunks of 16 bytes; chunk c of row r lies at c ^ (r % 8), so that
// the eight rows of a matrix are in different banks (128-byte swizzle). With kNContiguous the rows
// of B are 64 columns at one k, in panels of 64 columns. sm_90a multiplies by wgmma. kOverlapsMma:
// the wgmma of a block of K is then still running while the next one starts, at the price of one
// stage. kHoldsAllOfK: there are as many stages as blocks of K.
#pragma once
#include "kernels/cuda/common/wgmma.h"

namespace npusim {

// The operand whose first blocks are loaded before the other's, which may not be there yet.
enum class First { kNone, kA, kB };

template <typename T, int kTileRows, int kTileColumns, int kWarpsM, int kWarpsN, int kStages,
          bool kNContiguous, bool kOverlapsMma = false, bool kHoldsAllOfK = false>
struct MmaTile {
  static constexpr int kDepth = 64;
  static constexpr int kThreads = kWarpsM * kWarpsN * 32;
  // A warpgroup has whole rows of the tile, in blocks of 64; a warp has blocks of 16 by 8.
  static constexpr bool kGroups = kHasWgmma;
  static constexpr int kGroupRows = kTileRows / (kThreads / 128);
  static constexpr int kMmaInFlight = kGroups && kOverlapsMma ? 1 : 0;
  static constexpr int kAhead =
      kHoldsAllOfK ? kStages : kStages - 1 - kMmaInFlight;  // blocks of K in flight
  static constexpr int kWarpRows = kTileRows / kWarpsM;
  static constexpr int kWarpColumns = kGroups ? kTileColumns : kTileColumns / kWarpsN;
  static constexpr int kBlocksM = kGroups ? kGroupRows / 64 : kWarpRows / 16;
  static constexpr int kBlocksN = kWarpColumns / 8;
  static constexpr int kABytes = kTileRows * kDepth * 2, kBBytes = kTileColumns * kDepth * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kPanelBytes = kDepth * kDepth * 2;  // of 64 columns of B, kNContiguous
  static_assert(kBlocksN % 2 == 0 && kBlocksM >= 1 && kAhead >= 1);
  static_assert(!kNContiguous || kTileColumns % 64 == 0);

  float sums[kBlocksM][kBlocksN][4];

  // Where block (i, j) of this warp's sums lies in the tile: the lane's first row and column.
  static int row_of(int i) {
    if constexpr (kGroups) {
      return warp() / 4 * kGroupRows + i * 64 + warp() % 4 * 16 + lane() / 4;
    } else {
      return warp() / kWarpsN * kWarpRows + i * 16 + lane() / 4;
    }
  }
  static int column_of(int j) {
    return (kGroups ? 0 : warp() % kWarpsN * kWarpColumns) + j * 8 + lane() % 4 * 2;
  }

  // Sums K from `begin`, a multiple of kDepth, up to `end`; with kOverlapsMma there must be
  // something.
  template <First kFirst = First::kNone, typename Source>
  void run(const Source& source, int64_t begin, int64_t end, void* shared) {
    constexpr int kRowsEach = kTileRows * 8 / kThreads;
    constexpr int kColumnsEach = kNContiguous ? 1 : kTileColumns * 8 / kThreads;
    const unsigned base = shared_address(shared);
    const int blocks = static_cast<int>(ceil_div(end - begin, kDepth));
    if constexpr (kMmaInFlight > 0)
      __builtin_assume(blocks > 0);  // else every wgmma would wait for the one before
    typename Source::Row rows[kRowsEach];
    typename Source::Column columns[kColumnsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) rows[i] = source.a_row(row_in(i));
#pragma unroll
    for (int i = 0; i < kColumnsEach; ++i) columns[i] = source.b_column(column_in(i));
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;
      }
    }
    const auto fill = [&](int block, bool with_a, bool with_b) {
      if (block >= blocks) return;
      const int64_t k = begin + static_cast<int64_t>(block) * kDepth;
      const unsigned at = base + block % kStages * kStageBytes;
      if (!source.wide) {
        if (kFirst == First::kA ? with_b : with_a) gather_stage(source, k, at);
        return;
      }
      if (with_b) fill_b(source, columns, k, at + kABytes);
      if (with_a) fill_a(source, rows, k, at);
    };
    if constexpr (kFirst == First::kA) {
      for (int block = 0; block < kAhead; ++block) fill(block, true, false);
      source.before_b();
    } else if constexpr (kFirst == First::kB) {
      for (int block = 0; block < kAhead; ++block) fill(block, false, true);
      source.before_a();
    }
    for (int block = 0; block < kAhead; ++block) {
      fill(block, kFirst != First::kA, kFirst != First::kB);
      cp_async_commit();
    }
    if constexpr (kFirst == First::kB) source.after_prologue();
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      cp_async_wait<kAhead - 1>();
      const unsigned at = base + block % kStages * kStageBytes;
      if constexpr (kGroups) {
        fence_proxy_async_shared();
        __syncthreads();
        start_wgmma(at);
        fill(block + kAhead, true, true);
        cp_async_commit();
        if constexpr (!kHoldsAllOfK) warpgroup_wait<kMmaInFlight>();
      } else {
        __syncthreads();
        fill(block + kAhead, true, true);
        cp_async_commit();
        run_mma(at);
      }
    }
    launch_dependents();  // not before: their blocks would gather on the multiprocessors that end
                          // first
    cp_async_wait<0>();
    if constexpr (kGroups) {
      warpgroup_wait<0>();
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) warpgroup_fence_operand(sums[i]);
    }
  }

 private:
  static constexpr int kRowChunks = kNContiguous ? kTileColumns / 8 : 8;  // of B in memory
  static_assert(kThreads % 8 == 0 && kThreads % kRowChunks == 0);

  static int lane() { return threadIdx.x % 32; }
  static int warp() { return threadIdx.x / 32; }
  static int row_in(int i) { return threadIdx.x / 8 + i * (kThreads / 8); }
  static int column_in(int i) { return kNContiguous ? threadIdx.x % kRowChunks * 8 : row_in(i); }
  static unsigned chunk_at(int row, int chunk) {
    return row * (kDepth * 2) + ((chunk ^ (row & 7)) << 4);
  }
  static unsigned n_contiguous_at(int k, int chunk) {
    return chunk / 8 * kPanelBytes + chunk_at(k, chunk % 8);
  }

  template <typename Source, typename Rows>
  static void fill_a(const Source& source, const Rows& rows, int64_t k, unsigned at) {
    const int chunk = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < kTileRows * 8 / kThreads; ++i) {
      source.template load_a<true>(rows[i], k + chunk * 8, at + chunk_at(row_in(i), chunk));
    }
  }
  template <typename Source, typename Columns>
  static void fill_b(const Source& source, const Columns& columns, int64_t k, unsigned at) {
    const int chunk = threadIdx.x % 8;
    if constexpr (kNContiguous) {
      constexpr int kStep = kThreads / kRowChunks;
#pragma unroll
      for (int i = 0; i < kDepth / kStep; ++i) {
        const int row = threadIdx.x / kRowChunks + i * kStep;
        source.template load_b<true>(columns[0], k + row,
                                     at + n_contiguous_at(row, threadIdx.x % kRowChunks));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTileColumns * 8 / kThreads; ++i) {
        source.template load_b<true>(columns[i], k + chunk * 8, at + chunk_at(row_in(i), chunk));
      }
    }
  }

  // The same for operands that lie anywhere: rare, so it is slow rather than long.
  template <typename Source>
  static void gather_stage(const Source& source, int64_t k, unsigned at) {
    const int chunk = threadIdx.x % 8;
#pragma unroll 1
    for (int i = 0; i < kTileRows * 8 / kThreads; ++i) {
      const int row = row_in(i);
      source.template load_a<false>(source.a_row(row), k + chunk * 8, at + chunk_at(row, chunk));
    }
    at += kABytes;
    constexpr int kStep = kNContiguous ? kThreads / kRowChunks : 1;
    constexpr int kCount = kNContiguous ? kDepth / kStep : kTileColumns * 8 / kThreads;
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const auto column = source.b_column(column_in(i));
      if constexpr (kNContiguous) {
        const int row = threadIdx.x / kRowChunks + i * kStep;
        source.template load_b<false>(column, k + row,
                                      at + n_contiguous_at(row, threadIdx.x % kRowChunks));
      } else {
        source.template load_b<false>(column, k + chunk * 8, at + chunk_at(row_in(i), chunk));
      }
    }
  }

  void start_wgmma(unsigned at) {
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
        const unsigned a = at + (warp() / 4 * kGroupRows + i * 64) * (kDepth * 2) + step * 32;
        if constexpr (kNContiguous) {
          const unsigned b = at + kABytes + step * 16 * (kDepth * 2);
          wgmma_transposed<T>(sums[i], matrix_descriptor(a), matrix_descriptor(b, kPanelBytes));
        } else {
          wgmma<T>(sums[i], matrix_descriptor(a), matrix_descriptor(at + kABytes + step * 32));
        }
      }
    }
    warpgroup_commit();
  }

  void run_mma(unsigned at) {
    const int first_row = warp() / kWarpsN * kWarpRows;
    const int first_column = warp() % kWarpsN * kWarpColumns;
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      unsigned a[kBlocksM][4], b[kBlocksN / 2][4];
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
        const int row = first_row + i * 16 + lane() % 16;
        ldmatrix(a[i], at + chunk_at(row, step * 2 + lane() / 16));
      }
#pragma unroll
      for (int j = 0; j < kBlocksN / 2; ++j) {
        if constexpr (kNContiguous) {
          const int chunk = (first_column + j * 16) / 8 + lane() / 16;
          const int k = step * 16 + lane() % 16;
          ldmatrix_transposed(b[j], at + kABytes + n_contiguous_at(k, chunk));
        } else {
          const int column = first_column + j * 16 + lane() / 16 * 8 + lane() % 8;
          ldmatrix(b[j], at + kABytes + chunk_at(column, step * 2 + lane() / 8 % 2));
        }
      }
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocksN; ++j) {
          mma_16x8x16<T>(sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2],
                         b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
};

}  // namespace npusim
