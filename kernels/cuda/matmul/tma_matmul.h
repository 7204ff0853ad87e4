// Matrix products of many rows on Hopper, warp-specialized: a producer warp loads tiles of x and W
// by TMA into a multistage pipeline in shared memory, and consumer warpgroups multiply them by
// wgmma, 64 rows of the block's tile each.
//
// The blocks of a cluster share work in two ways. NPUSIM_CLUSTER_M blocks with rows of x of their
// own take the same rows of W, and NPUSIM_CLUSTER_N blocks the same rows of x: each loads a part of
// what is shared and multicasts it to the others. NPUSIM_CLUSTER_K blocks split K: each sends its
// partial sums to the block that finishes the rows, which adds them up in order. Without a cluster,
// blocks may be persistent (NPUSIM_PERSISTENT_TILES) and take one tile after another: the pipeline
// already fills for the next tile while the epilogue of the last one runs.
#pragma once
#include "kernels/cuda/matmul/tma_epilogue.h"
#include "kernels/cuda/matmul/tma_pipeline.h"

namespace npusim {

inline void make_barriers(const Pipeline& pipeline, const Maps& maps) {
#pragma unroll
  for (int i = 0; i < 1 + params.segments; ++i) prefetch_tensor_map(maps.all[i]);
  for (int i = 0; i < kPipelineStages; ++i) {
    init_barrier(pipeline.full_barrier(i), 1);
    init_barrier(pipeline.empty_barrier(i), kConsumerWarps * ClusterBlock::kProducers);
  }
  if constexpr (kClusterK > 1) {
    init_barrier(pipeline.base + kExchangeBarrierAt, 1);
    arrive_and_expect_bytes(pipeline.base + kExchangeBarrierAt, (kClusterK - 1) * kSliceBytes);
  }
  fence_barrier_init();
}

// A persistent block, which takes one tile after another.
inline void run_persistent(const Pipeline& pipeline, const Maps& maps,
                           const TileEpilogue& tile_epilogue) {
  const bool is_consumer = threadIdx.x < kConsumerWarps * 32;
  int blocks_before = 0;
  Scales row_scales;
#pragma unroll 1
  for (TmaTile tile; tile.exists(); tile.advance()) {
    const ClusterBlock cluster_block(tile);
    const Producer producer(cluster_block, pipeline, maps, blocks_before);
    if (threadIdx.x == kProducerThread) {
      if (blocks_before == 0) producer.prologue();
#pragma unroll 1
      for (int i = blocks_before == 0 ? kPipelineStages : 0; i < cluster_block.blocks; ++i)
        producer.refill(i);
    }
    if (is_consumer) {
      if (kAfterNorm && blocks_before == 0) wait_on_dependencies();
      row_scales.read(tile_epilogue.squares, cluster_block.first_row);
      if (threadIdx.x == 0) tile_epilogue.prefetch_vectors(cluster_block);
      Accumulators sums;
      sums.multiply(cluster_block, pipeline, producer, row_scales);
      row_scales.scale(sums);
      if (!kAfterNorm && blocks_before == 0) wait_on_dependencies();
      store_tile(sums, cluster_block, tile_epilogue);
    }
    blocks_before += cluster_block.blocks;
  }
  wait_on_dependencies();
}

// A block with one tile.
inline void run_cluster(const Pipeline& pipeline, const Maps& maps,
                        const TileEpilogue& tile_epilogue) {
  const bool is_consumer = threadIdx.x < kConsumerWarps * 32;
  const ClusterBlock cluster_block{TmaTile{}};
  const Producer producer(cluster_block, pipeline, maps, 0);
  if (threadIdx.x == kProducerThread) {
    producer.prologue();
    if constexpr (kHasProducerWarp) {
#pragma unroll 1
      for (int i = kPipelineStages; i < cluster_block.blocks; ++i) producer.refill(i);
    }
  }
  __syncwarp();
  if (threadIdx.x == 0) tile_epilogue.prefetch_vectors(cluster_block);
  if constexpr (kAfterNorm) wait_on_dependencies();
  Accumulators sums;
  if (is_consumer) {
    Scales row_scales;
    row_scales.read(tile_epilogue.squares, cluster_block.first_row);
    sums.multiply(cluster_block, pipeline, producer, row_scales);
    row_scales.scale(sums);
  }
  if constexpr (!kAfterNorm) wait_on_dependencies();
  // Until here other blocks multicast to this one, or read what it has multicast to them.
  if constexpr (kCluster > 1 && kClusterK == 1) cluster_arrive_relaxed();
  if (is_consumer) {
    if constexpr (kClusterK > 1) {
      send_partial_sums(sums, cluster_block);
      reduce_slice(cluster_block, tile_epilogue, pipeline.base + kExchangeBarrierAt);
    } else {
      store_tile(sums, cluster_block, tile_epilogue);
    }
  }
  if constexpr (kClusterK > 1) cluster_arrive_relaxed();
  if constexpr (kCluster > 1) cluster_wait();
}

inline void run_tma(void* const* operands, const Maps& maps) {
  const Pipeline pipeline{shared_address(shared_memory)};
  if (threadIdx.x == kProducerThread) make_barriers(pipeline, maps);
  __syncwarp();
  if constexpr (kCluster > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }
  launch_dependents();
  const TileEpilogue tile_epilogue(operands);
  if constexpr (NPUSIM_PERSISTENT_TILES > 0) {
    run_persistent(pipeline, maps, tile_epilogue);
  } else {
    run_cluster(pipeline, maps, tile_epilogue);
  }
}

}  // namespace npusim
