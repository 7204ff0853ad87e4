// Convolution on the tensor cores, channels contiguous and in eights. A block has a tile of
// positions by columns; with NPUSIM_SPLIT > 1 the blocks of a cluster split K of one tile: each
// sends its partial sums to the block that finishes the rows, which adds them up in order.
#pragma once
#include "kernels/cuda/common/cluster.h"
#include "kernels/cuda/conv/conv_operands.h"
#include "kernels/cuda/conv/conv_vectors.h"
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/mma_tile.h"

namespace npusim {

constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr int kSplit = kHasClusters ? NPUSIM_SPLIT : 1;  // else one block of a cluster does it all
constexpr int64_t kColumnTiles = ceil_div(kColumns, kTileColumns);
constexpr int kSliceRows = kTileRows / kSplit;  // rows that a block of a cluster finishes
constexpr int kPitch = kTileColumns + 8;        // floats between rows of sums in shared memory
constexpr bool kYIsLine = is_line(params.y_strides), kRIsLine = is_line(params.r_strides);

constexpr int kBlocksOfK = static_cast<int>(ceil_div(kK, 64));
static_assert(kSplit <= kBlocksOfK);
constexpr bool kHoldsAllOfK = kBlocksOfK <= NPUSIM_STAGES * kSplit;  // all of a slice of K

using BlockTile = MmaTile<W, kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, NPUSIM_STAGES,
                          false, NPUSIM_OVERLAPS_MMA != 0, kHoldsAllOfK>;

// Shared memory: the tile's pipeline, its windows, its vectors, then the residual, or sums from the
// blocks of a cluster, [block][row of the slice][column].
constexpr int kWindowsAt = BlockTile::kSharedBytes;
using Vectors = TileVectors<kWindowsAt + kTileRows * 8, kTileColumns>;
constexpr int kSumsAt = kWindowsAt + kTileRows * 8 + Vectors::kBytes, kResidualAt = kSumsAt;

// A row of A: where its taps lie. A table in shared memory holds the windows of the tile's rows.
struct WindowRow {
  Window window;

  static void prepare(int64_t first_row, const WindowSteps& steps) {
    for (int row = threadIdx.x; row < kTileRows; row += BlockTile::kThreads) {
      reinterpret_cast<Window*>(shared_memory + kWindowsAt)[row] =
          window_at(first_row + row, steps);
    }
    __syncthreads();
  }
  static WindowRow of(int64_t, int row) {
    return {reinterpret_cast<const Window*>(shared_memory + kWindowsAt)[row]};
  }
  bool has(int tap) const { return has_tap(window, tap); }
  int64_t offset(int tap) const { return window.first + tap_offset(tap); }
};
// The same for convolutions that are transposed, or have many taps.
struct AnyRow {
  Position position{0};
  bool exists = false;

  static void prepare(int64_t, const WindowSteps&) {}
  static AnyRow of(int64_t first_row, int row) {
    const bool exists = first_row + row < kPositions;
    return {Position(exists ? first_row + row : 0), exists};
  }
  bool has(int tap) const {
    return exists && tap < kTaps && input_offset<kTransposed>(position, tap) != kPadding;
  }
  int64_t offset(int tap) const { return input_offset<kTransposed>(position, tap); }
};
template <bool kWindows>
struct RowOf {
  using type = WindowRow;
};
template <>
struct RowOf<false> {
  using type = AnyRow;
};

// Where eight columns of a position lie, and how many of them exist.
struct Place {
  int64_t y, r, channel;
  int count;

  Place(int64_t row, int64_t column, int64_t group) {
    channel = group * kColumns + column;
    count = row < kPositions ? static_cast<int>(smaller<int64_t>(kColumns - column, 8)) : 0;
    if (count <= 0) row = 0;
    y = offset_at<kYIsLine>(row, params.y_strides) + channel;
    r = params.residual ? offset_at<kRIsLine>(row, params.r_strides) + channel : 0;
  }
};

// Where the sums that a lane finishes lie: eight columns, which it takes from every fourth block of
// eight, of row `row` of its own.
constexpr int kQuads = static_cast<int>(ceil_div(BlockTile::kBlocksN, 4));
constexpr int kRowsOfLane = BlockTile::kBlocksM * 2;
inline Place place_of_lane(int64_t first_row, int64_t first_column, int64_t group, int quad,
                           int row) {
  const int t = threadIdx.x % 4, block = smaller(quad * 4 + t, BlockTile::kBlocksN - 1);
  return Place(first_row + BlockTile::row_of(row / 2) + row % 2 * 8,
               first_column + BlockTile::column_of(block) - t * 2, group);
}

// The residual may wait in shared memory, each lane's where it alone reads it.
constexpr bool kResidualInShared =
    NPUSIM_RESIDUAL_IN_SHARED && kSplit == 1 && BlockTile::kBlocksN % 4 == 0;
inline unsigned residual_slot(int quad, int row) {
  return kResidualAt + ((quad * kRowsOfLane + row) * BlockTile::kThreads + threadIdx.x) * 16;
}

struct Source {
  using Row = typename RowOf<kHasWindows && !kTransposed>::type;
  using Column = const W*;  // at K 0; none outside
  const X* x;               // channel 0 of the group
  const W* w;               // of the group
  int64_t first_row, first_column, end, group;
  bool wide;
  const VectorEpilogue& epilogue;

  Row a_row(int row) const { return Row::of(first_row, row); }
  Column b_column(int column) const {
    const int64_t at = first_column + column;
    return at < Weights::kAll ? Weights::column(w, at) : nullptr;
  }
  template <bool kWide>
  void load_a(const Row& row, int64_t k, unsigned to) const {
    const int at = static_cast<int>(k), channels = static_cast<int>(kChannels);
    const bool inside = row.has(at / channels);
    copy_chunk<kWide>(to, inside ? x + at % channels + row.offset(at / channels) : x,
                      inside ? 8 : 0);
  }
  template <bool kWide>
  void load_b(Column column, int64_t k, unsigned to) const {
    const bool exists = column && k < end;
    copy_chunk<kWide>(to, exists ? column + k : w, exists ? 8 : 0);
  }
  void before_a() const {
    if constexpr (kBiasUnwritten) copy_vectors();
    wait_on_dependencies();
    if constexpr (!kBiasUnwritten) copy_vectors();
  }
  // With the first block of K: all threads have met when it is there.
  void copy_vectors() const {
    Vectors::copy(epilogue, group * kColumns + first_column, kColumns - first_column);
  }
  void after_prologue() const {
    if (!kResidualInShared || !epilogue.wide) return;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
#pragma unroll
      for (int row = 0; row < kRowsOfLane; ++row) {
        const Place at = place_of_lane(first_row, first_column, group, quad, row);
        copy_chunk<true>(shared_address(shared_memory + residual_slot(quad, row)),
                         epilogue.epilogue.residual + at.r, at.count);
      }
    }
  }
};

// Finishes the tile from registers. The lanes of a quad exchange sums, so that each has eight
// neighbouring columns of a row.
inline void finish_tile(const BlockTile& tile, const Source& source) {
  const VectorEpilogue& epilogue = source.epilogue;
  const auto place = [&](int quad, int row) {
    return place_of_lane(source.first_row, source.first_column, source.group, quad, row);
  };
  uint4 residual[2][kRowsOfLane];
  constexpr int kBuffers = Vectors::kCount > 0 ? 1 : 2;  // what is in shared memory is near
  float bias[kBuffers][8 * VectorEpilogue::kVectors];
  const auto load_bias = [&](int quad) {
    const Place first = place(quad, 0);
    const int64_t column = first.channel - source.group * kColumns;
    Vectors::added(epilogue, static_cast<int>(column - source.first_column), first.channel,
                   static_cast<int>(smaller<int64_t>(kColumns - column, 8)), bias[quad % kBuffers]);
  };
  const auto load = [&](int quad) {
    if constexpr (kBuffers == 2) load_bias(quad);
#pragma unroll
    for (int row = 0; row < kRowsOfLane; ++row) {
      if (kResidualInShared && epilogue.wide) {
        residual[quad % 2][row] =
            *reinterpret_cast<const uint4*>(shared_memory + residual_slot(quad, row));
      } else {
        const Place at = place(quad, row);
        residual[quad % 2][row] = epilogue.residual(at.r, at.count);
      }
    }
  };
  load(0);
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    if constexpr (kBuffers == 1) load_bias(quad);
    if (quad + 1 < kQuads) load(quad + 1);
#pragma unroll
    for (int row = 0; row < kRowsOfLane; ++row) {
      float sums[8];
      if (!eight_columns(tile, quad, row, sums)) continue;
      const Place at = place(quad, row);
      epilogue.finish(at.y, at.r, at.count, residual[quad % 2][row], bias[quad % kBuffers], sums);
    }
  }
}

// Sends the tile's partial sums to the blocks that finish them.
inline void send_partial_sums(const BlockTile& tile, int slice) {
  const unsigned sums = shared_address(shared_memory + kSumsAt);
  cluster_wait();  // all blocks have begun
#pragma unroll
  for (int i = 0; i < BlockTile::kBlocksM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = BlockTile::row_of(i) + half * 8;
      const unsigned line = (slice * kSliceRows + row % kSliceRows) * kPitch;
      const unsigned to = map_shared_rank(sums + line * 4, row / kSliceRows);
#pragma unroll
      for (int j = 0; j < BlockTile::kBlocksN; ++j) {
        store_distributed_shared(to + BlockTile::column_of(j) * 4, tile.sums[i][j][half * 2],
                                 tile.sums[i][j][half * 2 + 1]);
      }
    }
  }
}

// Adds up and finishes this block's rows of a cluster's tile.
inline void reduce_slice(const Source& source, int rank) {
  const VectorEpilogue& epilogue = source.epilogue;
  constexpr int kChunks = kTileColumns / 8, kAll = kSliceRows * kChunks;
  constexpr int kEach = static_cast<int>(ceil_div(kAll, BlockTile::kThreads));
  const auto place = [&](int at) {
    const int64_t row = source.first_row + rank * kSliceRows + at / kChunks;
    return Place(at < kAll ? row : kPositions, source.first_column + at % kChunks * 8,
                 source.group);
  };
  uint4 residual[kEach];
  float bias[kEach][8 * VectorEpilogue::kVectors];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Place to = place(threadIdx.x + i * BlockTile::kThreads);
    residual[i] = epilogue.residual(to.r, to.count);
    const int column = static_cast<int>(threadIdx.x + i * BlockTile::kThreads) % kChunks * 8;
    Vectors::added(epilogue, column, to.channel, to.count, bias[i]);
  }
  cluster_arrive();
  cluster_wait();  // all partial sums have arrived
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = threadIdx.x + i * BlockTile::kThreads;
    const Place to = place(at);
    if (to.count <= 0) continue;
    const float* from = reinterpret_cast<const float*>(shared_memory + kSumsAt) +
                        at / kChunks * kPitch + at % kChunks * 8;
    float sums[8] = {};
#pragma unroll
    for (int slice = 0; slice < kSplit; ++slice) {
      float v[8];
      load_floats<8>(from + slice * kSliceRows * kPitch, v);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[e] += v[e];
    }
    epilogue.finish(to.y, to.r, to.count, residual[i], bias[i], sums);
  }
}

inline void run(void* const* operands) {
  const int slice = blockIdx.z % NPUSIM_SPLIT;
  const Part part(blockIdx.z / NPUSIM_SPLIT);
  if (slice >= kSplit) return;  // only where launches do not overlap
  if constexpr (kSplit > 1) cluster_arrive();
  const int64_t begin = slice * kBlocksOfK / kSplit * BlockTile::kDepth;
  const int64_t end = smaller<int64_t>((slice + 1) * kBlocksOfK / kSplit * BlockTile::kDepth, kK);
  const bool wide = is_aligned(operands[0], 16) && is_aligned(operands[1], 16);
  VectorEpilogue epilogue(part.moved(Epilogue(operands, 1, params.out_channels)));
  epilogue.wide = epilogue.wide && NPUSIM_WIDE_Y;
  const Source source{static_cast<const X*>(operands[0]) + part.group * kChannels,
                      static_cast<const W*>(operands[1]) + part.number * Weights::kAll * kK,
                      blockIdx.x / kColumnTiles * kTileRows,
                      blockIdx.x % kColumnTiles * kTileColumns,
                      end,
                      part.group,
                      wide && NPUSIM_WIDE,
                      epilogue};
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  Source::Row::prepare(source.first_row, part.steps);
  BlockTile tile;
  tile.run<First::kB>(source, begin, end, shared_memory);
  if constexpr (kSplit > 1) {
    send_partial_sums(tile, slice);
    reduce_slice(source, slice);
  } else {
    finish_tile(tile, source);
  }
}

}  // namespace npusim

#if NPUSIM_SPLIT > 1 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define NPUSIM_CLUSTER_DIMS __cluster_dims__(1, 1, NPUSIM_SPLIT)
#endif
