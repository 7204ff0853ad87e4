// The epilogue of tma_matmul.h: a block stores its tile, or the blocks of a cluster that split K
// reduce their partial sums through distributed shared memory, and each stores a slice of the rows.
#pragma once
#include "kernels/cuda/matmul/row_epilogue.h"
#include "kernels/cuda/matmul/tma_pipeline.h"

namespace npusim {

// Whether squares are summed by 64 columns in the order of quad_sum, as products of any number of
// rows do it (codegen/cuda/one_order.py).
constexpr bool kSquaresOfSlots = kBeforeNorm && NPUSIM_ORDERED_SLICES > 0;
constexpr int kSlotTiles = static_cast<int>(ceil_div(params.n, 64));
static_assert(!kSquaresOfSlots || kColumns % 64 == 0);

struct TileEpilogue : RowEpilogue {
  static constexpr int kTiles = static_cast<int>(ceil_div(params.n, kTmaOutputs));
  static_assert(!kBeforeNorm || (kTiles <= kSlots && kParts == 1));
  using RowEpilogue::RowEpilogue;

  // Prefetches the vectors of a tile's columns to L2 while the tile is multiplied.
  void prefetch_vectors(const ClusterBlock& cluster_block) const {
    const int exist = smaller(kTmaOutputs, static_cast<int>(params.n) - cluster_block.first_column);
    if (params.n % 8 != 0 || exist <= 0 || !epilogue.wide) return;
    if constexpr (kBeforeNorm)
      prefetch_l2(norm_outputs.norm + cluster_block.first_column, exist * 2);
    if constexpr (params.has_bias != 0) {
      prefetch_l2(epilogue.epilogue.bias + cluster_block.first_column, exist * 4);
    }
  }
  void store_squares(const ClusterBlock& cluster_block, int row, float sum) const {
    norm_outputs.store_squares<kTiles>(row, cluster_block.first_column / kTmaOutputs, sum);
  }
  void store_gated(int row, int column, const float (&first)[8], const float (&second)[8]) const {
    float b[8], more[8];
    bias(column, b);
    second_bias(column, more);
    RowEpilogue::store_gated(row, column, first, second, b, more);
  }
};

// Stores a tile whose K is not split. The four lanes that share a row exchange sums, so that each
// has eight neighbouring columns of it: those of every fourth block. Bias and residual of several
// blocks are loaded before any of them is stored.
inline void store_tile(const Accumulators& sums, const ClusterBlock& cluster_block,
                       const TileEpilogue& tile_epilogue) {
  constexpr int kBlocks = Accumulators::kBlocksN / kParts, kQuads = (kBlocks + 3) / 4;
  // As many quads of blocks at once as registers are left for.
  constexpr int kRegisters =
      65536 / static_cast<int>(ceil_div(NPUSIM_BLOCKS_PER_SM * NPUSIM_BLOCK, 128) * 128);
  constexpr int kLeft = (kRegisters - Accumulators::kBlocksN * 4 - 44) / 16;
  constexpr int kGroup = kParts == 2 ? 1 : smaller(kQuads, larger(1, smaller(kLeft, 4)));
  const int t = static_cast<int>(threadIdx.x % 4);
  const auto column_of = [&](int quad) { return cluster_block.first_column + (quad * 4 + t) * 8; };
  const auto eight = [&](int quad, int part, int half, float (&v)[8]) {
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (quad * 4 + j >= kBlocks) continue;
      even[j] = sums.sum(part * kBlocks + quad * 4 + j)[half * 2];
      odd[j] = sums.sum(part * kBlocks + quad * 4 + j)[half * 2 + 1];
    }
    transpose_quad(even);
    transpose_quad(odd);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[e * 2] = even[e];
      v[e * 2 + 1] = odd[e];
    }
  };
  // Of either row, those of 64 columns where their order is to be the same in any tile.
  float squares[2] = {}, fours[2][2] = {};
  static_assert(!kSquaresOfSlots || kGroup % 2 == 0 || kQuads % 2 == 0);
#pragma unroll
  for (int first = 0; first < kQuads; first += kGroup) {
    uint4 residual[kGroup][2], norm[kGroup];
    float bias[kGroup][8];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const bool exists = first + i < kQuads && (first + i) * 4 + t < kBlocks;
      const int column = exists ? column_of(first + i) : static_cast<int>(params.n);
      if constexpr (kParts == 1) {
        tile_epilogue.bias(column, bias[i]);
        norm[i] = tile_epilogue.norm(column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          residual[i][half] =
              tile_epilogue.residual(cluster_block.first_row + Accumulators::row_of(half), column);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (first + i >= kQuads) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = cluster_block.first_row + Accumulators::row_of(half),
                  column = column_of(first + i);
        float v[kParts][8];
#pragma unroll
        for (int part = 0; part < kParts; ++part) eight(first + i, part, half, v[part]);
        if ((first + i) * 4 + t >= kBlocks) continue;
        if constexpr (kParts == 2) {
          tile_epilogue.store_gated(row, column, v[0], v[kParts - 1]);
        } else {
          const float sum =
              tile_epilogue.store(row, column, residual[i][half], bias[i], norm[i], v[0]);
          squares[half] += sum;
          if constexpr (kSquaresOfSlots) fours[half][(first + i) % 2] = sum;
        }
      }
      if constexpr (kSquaresOfSlots) {
        if ((first + i) % 2 == 0) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float sum = NormOutputs::quad_sum(fours[half][0], fours[half][1]);
          if (t == 0)
            tile_epilogue.norm_outputs.store_squares<kSlotTiles>(
                cluster_block.first_row + Accumulators::row_of(half),
                cluster_block.first_column / 64 + (first + i) / 2, sum);
        }
      }
    }
  }
  if constexpr (kBeforeNorm && !kSquaresOfSlots) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = squares[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0)
        tile_epilogue.store_squares(cluster_block,
                                    cluster_block.first_row + Accumulators::row_of(half), sum);
    }
  }
}

// Split-K within a cluster. A block stores its partial sums over its pipeline, [row][column], and
// copies to each other block the slice of rows that this one finishes. Received slices lie after
// the barriers, [k_rank][row of the slice][column], without one for the block's own rank.
constexpr int kSliceRows = kTmaRows / kClusterK;
constexpr int kSliceBytes = kSliceRows * kPitch * 4;
constexpr int kExchangeBarrierAt =
    kBarriersAt + kPipelineStages * 16;  // the mbarrier that counts their bytes
constexpr int kSumsAt = ceil_div(kExchangeBarrierAt + 8, 128) * 128;
static_assert(kClusterK == 1 || (kTmaRows * kPitch * 4 <= kBarriersAt &&
                                 kSumsAt + (kClusterK - 1) * kSliceBytes <= NPUSIM_SHARED));

// Where the block of rank `to` receives what rank `from` has sent.
inline int slice_at(int from, int to) {
  return kSumsAt + (from < to ? from : from - 1) * kSliceBytes;
}

inline void send_partial_sums(const Accumulators& sums, const ClusterBlock& cluster_block) {
  const unsigned base = shared_address(shared_memory);
  sync_consumers<kConsumerWarps * 32>();  // the pipeline is no longer read
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* to = reinterpret_cast<float*>(shared_memory) + Accumulators::row_of(half) * kPitch;
#pragma unroll
    for (int j = 0; j < Accumulators::kBlocksN; ++j) {
      to[Accumulators::column_of(j)] = sums.sum(j)[half * 2];
      to[Accumulators::column_of(j) + 1] = sums.sum(j)[half * 2 + 1];
    }
  }
  fence_proxy_async_shared();
  sync_consumers<kConsumerWarps * 32>();
  if (threadIdx.x != 0) return;
#pragma unroll 1
  for (int i = 1; i < kClusterK; ++i) {
    const int k_rank = (cluster_block.k_rank + i) % kClusterK;
    const unsigned rank =
        cluster_block.m_rank + kClusterM * (cluster_block.n_rank + kClusterN * k_rank);
    copy_distributed_shared(map_shared_rank(base + slice_at(cluster_block.k_rank, k_rank), rank),
                            base + k_rank * kSliceBytes, kSliceBytes,
                            map_shared_rank(base + kExchangeBarrierAt, rank));
  }
}

// A thread finishes eight columns of y at a time.
constexpr int kChunks = static_cast<int>(ceil_div(kTmaOutputs, 8));  // of a row
constexpr int kEachChunk = static_cast<int>(ceil_div(kSliceRows * kChunks, kConsumerWarps * 32));

inline void reduce_slice(const ClusterBlock& cluster_block, const TileEpilogue& tile_epilogue,
                         unsigned sent) {
  const auto line = [&](int i) {
    return (static_cast<int>(threadIdx.x) + i * kConsumerWarps * 32) / kChunks;
  };
  const auto column = [&](int i) {
    return (static_cast<int>(threadIdx.x) + i * kConsumerWarps * 32) % kChunks * 8;
  };
  const int first_row = cluster_block.first_row + cluster_block.k_rank * kSliceRows;
  uint4 residual[kEachChunk], norm[kEachChunk];
  float bias[kEachChunk][8];
  if constexpr (kParts == 1) {
#pragma unroll
    for (int i = 0; i < kEachChunk; ++i) {
      const int row = line(i) < kSliceRows ? first_row + line(i) : static_cast<int>(params.m);
      residual[i] = tile_epilogue.residual(row, cluster_block.first_column + column(i));
      tile_epilogue.bias(cluster_block.first_column + column(i), bias[i]);
      norm[i] = tile_epilogue.norm(cluster_block.first_column + column(i));
    }
  }
  // The squares of eight columns are stored over the first of this block's own sums of them.
  float* own = reinterpret_cast<float*>(shared_memory + cluster_block.k_rank * kSliceBytes);
  wait_barrier(sent, 0);  // all partial sums have arrived
#pragma unroll
  for (int i = 0; i < kEachChunk; ++i) {
    if (line(i) >= kSliceRows) break;
    float v[kParts][8] = {};
#pragma unroll
    for (int k_rank = 0; k_rank < kClusterK; ++k_rank) {
      const int at = k_rank == cluster_block.k_rank ? k_rank * kSliceBytes
                                                    : slice_at(k_rank, cluster_block.k_rank);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float more[8];
        load_floats<8>(reinterpret_cast<const float*>(shared_memory + at) + line(i) * kPitch +
                           part * kTmaOutputs + column(i),
                       more);
#pragma unroll
        for (int e = 0; e < 8; ++e) v[part][e] += more[e];
      }
    }
    const int row = first_row + line(i);
    if constexpr (kParts == 2) {
      tile_epilogue.store_gated(row, cluster_block.first_column + column(i), v[0], v[kParts - 1]);
    } else {
      const float squares = tile_epilogue.store(row, cluster_block.first_column + column(i),
                                                residual[i], bias[i], norm[i], v[0]);
      if constexpr (kBeforeNorm) own[line(i) * kPitch + column(i)] = squares;
    }
  }
  if constexpr (kBeforeNorm) {
    sync_consumers<kConsumerWarps * 32>();
    if (threadIdx.x >= kSliceRows) return;
    const float* row = own + threadIdx.x * kPitch;
    float sum = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) sum += row[chunk * 8];
    tile_epilogue.store_squares(cluster_block, first_row + static_cast<int>(threadIdx.x), sum);
  }
}

}  // namespace npusim
