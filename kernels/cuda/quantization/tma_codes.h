// Products of many rows of x with rows of codes on Hopper, warp-specialized: a producer warp loads
// tiles of x and of codes by TMA into two rings in shared memory, and each consumer warpgroup makes
// numbers of 64 rows of codes in registers, which are wgmma's first operand; rows of x are its
// columns. So codes cross shared memory once, as codes.
//
// Codes of int8 are multiplied without their scale, which sums are multiplied by; those of int4
// become elements rounded to x's type. The sums of a block's NPUSIM_GROUPS warpgroups by
// NPUSIM_TOKENS rows of x go through shared memory, where the rings were, to be stored along rows
// of y. NPUSIM_CLUSTER_K blocks of a cluster split K: each adds up a share of the rows, in the
// order of the slices, from what all of them have in shared memory. Only for sm_90a.
#pragma once
#include "kernels/cuda/common/dependent_launch.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/common/tma.h"
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/linear_tile.h"
#include "kernels/cuda/quantization/code_fragments.h"
#include "kernels/cuda/quantization/code_tile.h"

namespace npusim {

constexpr int kCodeBlockK = kBytes ? 128 : 256;  // elements in 128 bytes of codes
constexpr int kStepsOfBlock = kCodeBlockK / 64;  // of x
constexpr int kXStageBytes = kTokens * 128, kCodeStageBytes = kTileWeights * 128;
constexpr int kCodesAt = NPUSIM_X_STAGES * kXStageBytes;
constexpr int kCodeBarriersAt = kCodesAt + NPUSIM_CODE_STAGES * kCodeStageBytes;
constexpr int kSumsPitch = kTileWeights + 4;  // floats, so that lanes' sums lie in other banks
static_assert(kTokens * kSumsPitch * 4 <= NPUSIM_SHARED);

// A whole warpgroup loads where that leaves registers to the others, so many a thread.
constexpr bool kMovesRegisters = NPUSIM_REGISTERS > 0;
static_assert(!kMovesRegisters || NPUSIM_BLOCK == kGroups128 * 128 + 128);

// A ring of stages, through which blocks pass in order.
template <int kRingStages, int kBytesOfStage, int kAt, int kFullAt>
struct Ring {
  unsigned base;
  int index = 0;
  unsigned phase = 0;

  explicit Ring(unsigned base) : base(base) {}
  unsigned stage() const { return base + kAt + index * kBytesOfStage; }
  unsigned full() const { return base + kFullAt + index * 8; }
  unsigned empty() const { return full() + kRingStages * 8; }
  void advance() {
    if (++index < kRingStages) return;
    index = 0;
    phase ^= 1;
  }
  void make() const {
    for (int i = 0; i < kRingStages; ++i) {
      init_barrier(base + kFullAt + i * 8, 1);
      init_barrier(base + kFullAt + (kRingStages + i) * 8, kGroups128 * 4);
    }
  }
  void wait_full() const { wait_barrier(full(), phase); }
  void wait_empty() const { wait_barrier(empty(), phase ^ 1); }  // at once, the first time around
};
using XRing = Ring<NPUSIM_X_STAGES, kXStageBytes, 0, kCodeBarriersAt>;
using CodeRing =
    Ring<NPUSIM_CODE_STAGES, kCodeStageBytes, kCodesAt, kCodeBarriersAt + NPUSIM_X_STAGES * 16>;

struct Maps {
  const TensorMap* all[1 + params.segments];
};

// Loads all of the block's slice, by one thread.
inline void produce(XRing x_ring, CodeRing code_ring, const Maps& maps, const CodeTile& tile) {
  const int steps = tile.steps(), blocks = (steps + kStepsOfBlock - 1) / kStepsOfBlock;
  const unsigned long long policy_of_codes = eviction_policy<kOneTokenTile>();
  const unsigned long long policy_of_x = eviction_policy<false>();
  const auto load_codes = [&](int block) {
    code_ring.wait_empty();
    arrive_and_expect_bytes(code_ring.full(), kCodeStageBytes);
#pragma unroll
    for (int load = 0; load < kTileWeights / kLoadRows; ++load) {
      const SegmentRow row = tile.segment_row(load);
      const int at = static_cast<int>(tile.begin) / (kBytes ? 2 : 4) + block * 64;
      tma_load<false, true>(code_ring.stage() + load * (kLoadRows * 128), maps.all[1 + row.segment],
                            at, row.row, code_ring.full(), 0, policy_of_codes);
    }
    code_ring.advance();
  };
  const auto load_x = [&](int step) {
    x_ring.wait_empty();
    arrive_and_expect_bytes(x_ring.full(), kXStageBytes);
    tma_load<false, true>(x_ring.stage(), maps.all[0], static_cast<int>(tile.begin) + step * 64,
                          tile.first_token, x_ring.full(), 0, policy_of_x);
    x_ring.advance();
  };
  const int ahead = smaller(blocks, NPUSIM_CODE_STAGES);
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  fence_proxy_async_global();
  for (int block = 0; block < ahead; ++block) load_codes(block);
  if constexpr (kWeightsUnwritten) wait_on_dependencies();
  fence_proxy_async_global();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    load_x(step);
    const int block = step / kStepsOfBlock + NPUSIM_CODE_STAGES;
    if (step % kStepsOfBlock == kStepsOfBlock - 1 && block < blocks) load_codes(block);
  }
}

// Multiplies the block's slice, in a warpgroup. Of the four products of a step, those of the step
// before run while codes become operands.
inline void consume(XRing x_ring, CodeRing code_ring, const CodeTile& tile, void* const* operands,
                    float (&sums)[kTokens / 8][4]) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int steps = tile.steps();
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) sums[i / 4][i % 4] = 0.0f;
  CodeFragments fragments(operands, tile, group * 64 + warp * 16);
  unsigned a[4][4];
  unsigned x_before = x_ring.empty();
  fragments.load_scales(0);
  __builtin_assume(steps > 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int step_of_block = step % kStepsOfBlock;
    if (step_of_block == 0) code_ring.wait_full();
    x_ring.wait_full();
    const unsigned rows = code_ring.stage() + (group * 64 + warp * 16) * 128;
    const auto scales = fragments.scales_of_step();
    fragments.load_scales(step + 1);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      warpgroup_wait<3>();  // what read a[k] has
      if (k == 3 && step > 0 && lane == 0) arrive(x_before);
      fragments.convert(rows, step_of_block, k, scales, a[k]);
      fence_fragment(a[k]);
      warpgroup_arrive();
      wgmma_codes<X>(sums, a[k], matrix_descriptor(x_ring.stage() + k * 32));
      warpgroup_commit();
    }
    x_before = x_ring.empty();
    x_ring.advance();
    if (step_of_block == kStepsOfBlock - 1) {
      __syncwarp();
      if (lane == 0) arrive(code_ring.empty());
      code_ring.advance();
    }
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
}

// Stores the sums of the block, eight columns of y a thread at once.
inline void store_sums(const CodeTile& tile, void* const* operands,
                       const float (&sums)[kTokens / 8][4]) {
  float* all = reinterpret_cast<float*>(shared_memory);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  sync_consumers<kGroups128 * 128>();  // nobody reads the rings any more
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      all[(j * 8 + lane % 4 * 2 + e % 2) * kSumsPitch + row + e / 2 * 8] = sums[j][e];
    }
  }
  sync_consumers<kGroups128 * 128>();
  if constexpr (kClusterK > 1) {
    cluster_arrive();
    cluster_wait();
  }
  constexpr int kChunks = kTileOutputs / 8, kStride = kGroups128 * 128 / kChunks * kClusterK;
  static_assert(kGroups128 * 128 % kChunks == 0);
  const int column = static_cast<int>(threadIdx.x) % kChunks * 8;
  const StoredColumns columns(operands, tile.first_column + column);
#pragma unroll 1
  for (int token = threadIdx.x / kChunks * kClusterK + tile.k_rank; token < kTokens;
       token += kStride) {
    if (columns.count <= 0 || tile.first_token + token >= params.m) break;
    float v[kParts][8] = {};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float* own = all + token * kSumsPitch + CodeTile::row_of(column, part);
#pragma unroll
      for (int rank = 0; rank < kClusterK; ++rank) {
        float more[8];
        load_floats<8>(kClusterK > 1 ? map_shared_rank(own, rank) : own, more);
#pragma unroll
        for (int e = 0; e < 8; ++e) v[part][e] = rank == 0 ? more[e] : v[part][e] + more[e];
      }
    }
    columns.store(tile.first_token + token, v);
  }
  if constexpr (kClusterK > 1) {  // nobody reads this block's sums any more
    cluster_arrive_relaxed();
    cluster_wait();
  }
}

inline void run_tma_codes(void* const* operands, const Maps& maps) {
  const unsigned base = shared_address(shared_memory);
  const XRing x_ring(base);
  const CodeRing code_ring(base);
  constexpr unsigned kProducer = kGroups128 * 128;
  if (threadIdx.x == kProducer) {
#pragma unroll
    for (int i = 0; i < 1 + params.segments; ++i) prefetch_tensor_map(maps.all[i]);
    x_ring.make();
    code_ring.make();
    fence_barrier_init();
  }
  __syncthreads();
  launch_dependents();
  const CodeTile tile;
  if (threadIdx.x >= kProducer) {
    if constexpr (kMovesRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == kProducer) produce(x_ring, code_ring, maps, tile);
  } else {
    if constexpr (kMovesRegisters) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(larger(24, NPUSIM_REGISTERS)));
    }
    float sums[kTokens / 8][4];
    consume(x_ring, code_ring, tile, operands, sums);
    wait_on_dependencies();
    store_sums(tile, operands, sums);
  }
}

}  // namespace npusim
