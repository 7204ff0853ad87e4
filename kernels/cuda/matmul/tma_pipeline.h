// The main loop of tma_matmul.h: how a cluster shares its operands, the multistage pipeline in
// shared memory, the producer's TMA loads, and the consumers' accumulators. Only for sm_90a.
#pragma once
#include "kernels/cuda/common/dependent_launch.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/common/tma.h"
#include "kernels/cuda/matmul/linear_operands.h"
#include "kernels/cuda/matmul/norm_between.h"
#include "kernels/cuda/matmul/tma_maps.h"
#include "kernels/cuda/matmul/tma_tile.h"

namespace npusim {

constexpr int kColumns = NPUSIM_TMA_COLUMNS;  // rows of W
constexpr int kClusterM = NPUSIM_CLUSTER_M;   // blocks of a cluster that share rows of W
constexpr int kClusterN = NPUSIM_CLUSTER_N;   // blocks of a cluster that share rows of x
constexpr int kClusterK = NPUSIM_CLUSTER_K;   // blocks of a cluster that split K
constexpr int kCluster = kClusterM * kClusterN * kClusterK;
static_assert(NPUSIM_PERSISTENT_TILES == 0 || kCluster == 1);
// Slices of K that are summed one after the other and added up in order, as the blocks of a cluster
// with as many do: the bits of products of any number of rows (codegen/cuda/one_order.py).
constexpr int kSlicesOfK = larger(NPUSIM_ORDERED_SLICES, 1);
static_assert(NPUSIM_ORDERED_SLICES == 0 || kClusterK == 1);
constexpr int kPipelineStages = NPUSIM_PIPELINE_STAGES, kStageBytes = (kTmaRows + kColumns) * 128;
constexpr int kXBytes = kTmaRows * 128;
constexpr int kBarriersAt =
    kPipelineStages * kStageBytes;  // the full barriers of all stages, then the empty ones
constexpr int kConsumerWarps = kTmaRows / 16;  // that multiply
constexpr int kBlocksOfK = static_cast<int>(ceil_div(params.k, 64));
constexpr int kPitch =
    kColumns + (kColumns % 16 == 0 ? 8 : 0);  // of rows of sums, which avoids bank conflicts

// So few rows that loading a block of W takes longer than multiplying it: bound by memory.
constexpr bool kFewRows = params.m <= 128;
// Bound by memory, a stage is released as soon as it is multiplied; otherwise the next wgmma is
// started first.
constexpr int kMmaInFlight = kFewRows ? 0 : 1;  // blocks of K that are still being multiplied
// Blocks of W that are loaded before the first of x; loads arrive in order.
constexpr int kAhead = kFewRows ? smaller(kPipelineStages, 3) : kPipelineStages;
// W that one block or cluster alone reads is evicted from L2 first.
constexpr bool kEvictsWFirst = params.m <= kTmaRows * kClusterM;

// Loads of W for a stage; each lies in one part of W (a gated product has two).
constexpr int kLoadsOfW = larger(kClusterM, kParts);
constexpr int kLoadRowsOfW = kColumns / kLoadsOfW, kLoadRowsOfX = kTmaRows / kClusterN;
static_assert(kLoadsOfW % kClusterM == 0 && kLoadRowsOfW % 8 == 0 && kLoadRowsOfX % 8 == 0);
// The thread that loads: of a warp of its own, or the first of the consumers.
constexpr bool kHasProducerWarp = NPUSIM_BLOCK > kConsumerWarps * 32;
constexpr unsigned kProducerThread = kHasProducerWarp ? kConsumerWarps * 32 : 0;
static_assert(kHasProducerWarp || NPUSIM_PERSISTENT_TILES == 0);

// A block's ranks in its cluster, and the tile and slice of K that it computes.
struct ClusterBlock {
  int m_rank = static_cast<int>(blockIdx.x % kClusterM);
  int n_rank = static_cast<int>(blockIdx.y % kClusterN);
  int k_rank = static_cast<int>(blockIdx.z);
  int first_row, first_column;
  int begin = k_rank * kBlocksOfK / kClusterK;  // blocks of K
  int blocks = (k_rank + 1) * kBlocksOfK / kClusterK - begin;

  explicit ClusterBlock(const TmaTile& tile)
      : first_row(tile.first_row), first_column(tile.first_column) {}

  unsigned rank(int m_rank, int n_rank) const {
    return m_rank + kClusterM * (n_rank + kClusterN * k_rank);
  }
  // Multicast masks: the blocks that share these rows of x, and those that share these rows of W.
  unsigned multicast_of_x() const {
    unsigned all = 0;
    for (int i = 0; i < kClusterN; ++i) all |= 1u << rank(m_rank, i);
    return all;
  }
  unsigned multicast_of_w() const {
    unsigned all = 0;
    for (int i = 0; i < kClusterM; ++i) all |= 1u << rank(i, n_rank);
    return all;
  }
  // The blocks that load something for this one, kClusterM + kClusterN - 1 of them.
  static constexpr int kProducers = kClusterM + kClusterN - 1;
  unsigned producer_rank(int i) const {
    if (i < kClusterN) return rank(m_rank, i);
    const int other = i - kClusterN;
    return rank(other + (other >= m_rank ? 1 : 0), n_rank);
  }
};

// The multistage pipeline, through which the blocks of K of all tiles of a block pass in order.
struct Pipeline {
  unsigned base;
  unsigned stage(int block) const { return base + block % kPipelineStages * kStageBytes; }
  unsigned full_barrier(int block) const {
    return base + kBarriersAt + block % kPipelineStages * 8;
  }
  unsigned empty_barrier(int block) const { return full_barrier(block) + kPipelineStages * 8; }
  static unsigned phase(int block) { return block / kPipelineStages & 1; }
};

// The TMA loads of a tile, issued by one thread. `blocks_before` blocks of K have passed through
// the pipeline before those of this tile.
struct Producer {
  static constexpr int kEach = kLoadsOfW / kClusterM;  // loads of W by this block
  const ClusterBlock& cluster_block;
  const Pipeline& pipeline;
  int blocks_before;
  const TensorMap* map_of_x;
  const TensorMap* map_of_w[kEach];
  int row_of_w[kEach], tile_row_of_w[kEach];
  unsigned multicast_of_x, multicast_of_w;
  unsigned long long policy_of_x = eviction_policy<false>();
  unsigned long long policy_of_w = eviction_policy<kEvictsWFirst>();

  Producer(const ClusterBlock& cluster_block, const Pipeline& pipeline, const Maps& maps,
           int blocks_before)
      : cluster_block(cluster_block),
        pipeline(pipeline),
        blocks_before(blocks_before),
        map_of_x(maps.all[0]),
        multicast_of_x(cluster_block.multicast_of_x()),
        multicast_of_w(cluster_block.multicast_of_w()) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int line = (cluster_block.m_rank * kEach + i) * kLoadRowsOfW;  // in the tile
      // Where the tile's part begins: its last load may pass the end of a segment, and stays in it.
      const MappedRow part =
          mapped_row(maps, cluster_block.first_column + line / kTmaOutputs * params.n);
      map_of_w[i] = part.map;
      row_of_w[i] = part.row + line % kTmaOutputs;
      tile_row_of_w[i] = line;
    }
  }

  void load_w(int i) const {
    const int at = blocks_before + i;
    arrive_and_expect_bytes(pipeline.full_barrier(at), kStageBytes);
#pragma unroll
    for (int load = 0; load < kEach; ++load) {
      tma_load<(kClusterM > 1), kFewRows>(pipeline.stage(at) + kXBytes + tile_row_of_w[load] * 128,
                                          map_of_w[load], (cluster_block.begin + i) * 64,
                                          row_of_w[load], pipeline.full_barrier(at), multicast_of_w,
                                          policy_of_w);
    }
  }
  void load_x(int i) const {
    const int line = cluster_block.n_rank * kLoadRowsOfX;
    tma_load<(kClusterN > 1), kFewRows>(
        pipeline.stage(blocks_before + i) + line * 128, map_of_x, (cluster_block.begin + i) * 64,
        cluster_block.first_row + line, pipeline.full_barrier(blocks_before + i), multicast_of_x,
        policy_of_x);
  }
  // Fills the pipeline for the first time; loads of W need not wait for the launches before.
  void prologue() const {
    const auto wait = [] {
      wait_on_dependencies();
      fence_proxy_async_global();
    };
    const int first = smaller(cluster_block.blocks, kPipelineStages),
              ahead = smaller(cluster_block.blocks, kAhead);
    if constexpr (!kWeightsUnwritten) wait();
    for (int i = 0; i < ahead; ++i) load_w(i);
    if constexpr (kWeightsUnwritten) wait();
    for (int i = 0; i < ahead; ++i) load_x(i);
    for (int i = ahead; i < first; ++i) {
      load_w(i);
      load_x(i);
    }
  }
  // Loads block i into the stage of an earlier one, once all consumers have released it.
  void refill(int i) const {
    if (i >= cluster_block.blocks) return;
    const int at = blocks_before + i;
    if (at >= kPipelineStages) wait_barrier(pipeline.empty_barrier(at), Pipeline::phase(at) ^ 1);
    load_w(i);
    load_x(i);
  }
};

using Scales = RowScales<NPUSIM_PERSISTENT_TILES == 0 && kSlots <= 48>;

// The accumulators of a warpgroup's 64 rows.
struct Accumulators {
  static constexpr int kBlocksN = kColumns / 8;
  static constexpr int kSides = kColumns > 256 ? 2 : 1;  // wgmma has 256 columns at most
  float at[kSides][kBlocksN / kSides][4];
  float slices[kSlicesOfK > 1 ? kBlocksN : 1][4];  // the sum of those that are finished

  float (&sum(int block))[4] { return at[block * kSides / kBlocksN][block % (kBlocksN / kSides)]; }
  const float (&sum(int block) const)[4] {
    return at[block * kSides / kBlocksN][block % (kBlocksN / kSides)];
  }
  static int row_of(int half) {
    return static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) + half * 8;
  }
  static int column_of(int block) { return block * 8 + static_cast<int>(threadIdx.x % 4) * 2; }

  void multiply(const ClusterBlock& cluster_block, const Pipeline& pipeline,
                const Producer& producer, Scales& row_scales) {
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum(j)[e] = 0.0f;
        if constexpr (kSlicesOfK > 1) slices[j][e] = 0.0f;
      }
    }
    int slice = 1, slice_end = kBlocksOfK / kSlicesOfK;
    const int blocks = cluster_block.blocks, lane = static_cast<int>(threadIdx.x % 32);
    const unsigned producer_rank =
        cluster_block.producer_rank(smaller(lane, ClusterBlock::kProducers - 1));
    const auto release = [&](int block) {
      if (lane < ClusterBlock::kProducers)
        arrive_remote(pipeline.empty_barrier(block), producer_rank);
    };
    __builtin_assume(blocks > 0);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      const int block = producer.blocks_before + i;
      wait_barrier(pipeline.full_barrier(block), Pipeline::phase(block));
      const unsigned x = pipeline.stage(block) + threadIdx.x / 128 * (64 * 128);
      warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int side = 0; side < kSides; ++side) {
          const unsigned w = pipeline.stage(block) + kXBytes + side * (kColumns / kSides * 128);
          wgmma<W>(at[side], matrix_descriptor(x + step * 32), matrix_descriptor(w + step * 32));
        }
      }
      warpgroup_commit();
      warpgroup_wait<kMmaInFlight>();
      if (i >= kMmaInFlight) release(block - kMmaInFlight);
      if constexpr (!kHasProducerWarp) {  // one block of K late, so that this warp never waits here
        if (i > 1 && threadIdx.x == 0) producer.refill(i - 2 + kPipelineStages);
        __syncwarp();
      }
      if constexpr (kSlicesOfK > 1) {
        if (i + 1 == slice_end) {
          ++slice;
          slice_end = slice * kBlocksOfK / kSlicesOfK;
          end_slice();
        }
      }
    }
    row_scales.finish_read();
    warpgroup_wait<0>();
    if constexpr (NPUSIM_PERSISTENT_TILES > 0 && kMmaInFlight > 0)
      release(producer.blocks_before + blocks - 1);
#pragma unroll
    for (int side = 0; side < kSides; ++side) warpgroup_fence_operand(at[side]);
    if constexpr (kSlicesOfK > 1) {
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum(j)[e] = slices[j][e];
      }
    }
  }

 private:
  void end_slice() {
    warpgroup_wait<0>();
#pragma unroll
    for (int side = 0; side < kSides; ++side) warpgroup_fence_operand(at[side]);
    if constexpr (kSlicesOfK > 1) {
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          slices[j][e] += sum(j)[e];
          sum(j)[e] = 0.0f;
        }
      }
    }
  }
};

}  // namespace npusim
