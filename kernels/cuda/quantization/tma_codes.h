// Products of rows of x with rows of codes on Hopper, warp-specialized: a producer warp loads tiles
// of x and of codes by TMA into two rings in shared memory, and each consumer warpgroup makes
// numbers of 64 rows of codes in registers, which are wgmma's first operand; rows of x are its
// columns. So codes cross shared memory once, as codes.
//
// Codes of int8 are multiplied without their scale, which sums are multiplied by; those of int4
// become elements rounded to x's type, or with NPUSIM_SUMS_GROUPS the sum of each group is
// multiplied by its scale in float32. Bits of a sum follow from that and from the slices of K, for
// any NPUSIM_TOKENS and NPUSIM_GROUPS.
//
// The sums of a block's NPUSIM_GROUPS warpgroups by NPUSIM_TOKENS rows of x go through shared
// memory, where the rings were, to be stored along rows of y. NPUSIM_CLUSTER_K blocks of a cluster
// split K: each adds up a share of the rows, in the order of the slices, from what all of them have
// in shared memory. Only for sm_90a.
#pragma once
#include "kernels/cuda/common/dependent_launch.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/common/tma.h"
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/linear_tile.h"
#include "kernels/cuda/quantization/code_fragments.h"
#include "kernels/cuda/quantization/code_tile.h"

namespace npusim {

constexpr int kStepsOfBlock = kCodeBlockK / 64;  // of x
constexpr int kXStageBytes = kTokens * 128, kCodeStageBytes = kTileWeights * 128;
constexpr int kCodesAt = NPUSIM_X_STAGES * kXStageBytes;
constexpr int kCodeBarriersAt = kCodesAt + NPUSIM_CODE_STAGES * kCodeStageBytes;
constexpr int kSumsPitch = kTileWeights + 4;  // floats, so that lanes' sums lie in other banks
// Scales and biases of the tile's rows of W.
constexpr int kColumnsAt =
    larger(kCodeBarriersAt + (NPUSIM_X_STAGES + NPUSIM_CODE_STAGES) * 16, kTokens * kSumsPitch * 4);
static_assert(kColumnsAt + kTileWeights * 8 <= NPUSIM_SHARED);

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
  const int steps = tile.steps(), blocks = steps / kStepsOfBlock;
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

// What the consumers of a warpgroup go through.
struct Consumer {
  XRing x_ring;
  CodeRing code_ring;
  int steps;
  unsigned rows = 0;  // of the warp, in the block of codes
  unsigned x_before;  // the barrier of the step before
  const int warp = static_cast<int>(threadIdx.x / 32);
  const bool releases = threadIdx.x % 32 == 0;
  const CodeFragments fragments;

  Consumer(XRing x_ring, CodeRing code_ring, const CodeTile& tile)
      : x_ring(x_ring), code_ring(code_ring), steps(tile.steps()), x_before(x_ring.empty()) {
    __builtin_assume(steps > 0);
  }
  void begin_block() {
    code_ring.wait_full();
    rows = code_ring.stage() + warp * (16 * 128);
  }
  void end_block() {
    __syncwarp();
    if (releases) arrive(code_ring.empty());
    code_ring.advance();
  }
  // Of the k-th 16 elements of the step.
  unsigned long long x_descriptor(int k) const {
    const unsigned long long first = matrix_descriptor(x_ring.stage());
    return (matrix_descriptor(0) >> 32 << 32) | (static_cast<unsigned>(first) + k * 2);
  }
  // The step before has been multiplied.
  void release_before(bool any) {
    if (any && releases) arrive(x_before);
  }
  void end_step() {
    x_before = x_ring.empty();
    x_ring.advance();
  }
};

// Multiplies the block's slice, in a warpgroup: bytes without their scales, or elements of int4.
// While a step of 64 elements of K is multiplied, the next becomes fragments.
inline void consume(Consumer& own, const CodeTile& tile, void* const* operands,
                    float (&sums)[kTokens / 8][4]) {
  unsigned a[2][4][4];
  CodeSides sides(operands, tile, own.warp * 16);
  auto coming = sides.load();
#pragma unroll 1
  for (int step = 0; step < own.steps; step += kStepsOfBlock) {
    const auto words = coming;
    coming = sides.load();
    own.begin_block();
#pragma unroll
    for (int i = 0; i < kStepsOfBlock; ++i) {
      unsigned (&now)[4][4] = a[i % 2];
      if constexpr (kBytes) {
        own.fragments.bytes(own.rows, i, now);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int chunk = i * 2 + half, group = chunk * 32 / static_cast<int>(kGroupSize);
          float scale[2], less[2];
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            scale[row] = CodeSides::scale(words, row, group);
            const auto zero = static_cast<float>(CodeSides::zero(words, row, group)) * kZeroStep;
            less[row] = -(128.0f + zero) * scale[row];
          }
          own.fragments.elements(own.rows, chunk, scale, less, now[half * 2], now[half * 2 + 1]);
        }
      }
      own.x_ring.wait_full();
      fence_fragments(now);
      warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_codes<X>(sums, now[k], own.x_descriptor(k));
      warpgroup_commit();
      warpgroup_wait<1>();
      own.release_before(step + i > 0);
      own.end_step();
    }
    own.end_block();
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
}

// The same with a sum for each group of int4, which is multiplied by the group's scale in float32.
// While a unit of one group or two is multiplied, the next becomes fragments.
inline void consume_groups(Consumer& own, const CodeTile& tile, void* const* operands,
                           float (&sums)[kTokens / 8][4]) {
  constexpr int kSize = static_cast<int>(kGroupSize);
  constexpr bool kHalves = kSize == 32 && kTokens > 32;  // a unit is half a step
  constexpr int kUnits = kHalves ? 2 : 1, kEach = 4 / kUnits;
  constexpr int kGroupsOfUnit = larger(64 / kUnits / kSize, 1), kOfGroup = kEach / kGroupsOfUnit;
  float part[kGroupsOfUnit][kTokens / 8][4], factors[kGroupsOfUnit][2] = {};
#pragma unroll
  for (int i = 0; i < kGroupsOfUnit * kTokens / 2; ++i)
    part[i / (kTokens / 2)][i / 4 % (kTokens / 8)][i % 4] = 0.0f;
  const auto add = [&] {
#pragma unroll
    for (int of = 0; of < kGroupsOfUnit; ++of) {
      warpgroup_fence_operand(part[of]);
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i)
        sums[i / 4][i % 4] =
            fmaf(factors[of][i % 4 / 2], part[of][i / 4][i % 4], sums[i / 4][i % 4]);
    }
  };
  unsigned a[2][kEach][4];
  CodeSides sides(operands, tile, own.warp * 16);
  auto coming = sides.load();
#pragma unroll 1
  for (int step = 0; step < own.steps; step += kStepsOfBlock) {
    const auto words = coming;
    coming = sides.load();
    own.begin_block();
#pragma unroll
    for (int n = 0; n < kStepsOfBlock * kUnits; ++n) {
      const int unit = n % kUnits, group = n * (64 / kUnits) / kSize;
      const bool starts = kSize < 128 || n % 2 == 0;
      unsigned (&now)[kEach][4] = a[n % 2];
#pragma unroll
      for (int j = 0; j < kEach / 2; ++j) {
        unsigned less[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int of = group + (kGroupsOfUnit > 1 ? j : 0);
          less[row] = small_zero_pair<X>(CodeSides::zero(words, row, of));
        }
        own.fragments.nibbles(own.rows, n * (kEach / 2) + j, less, now[j * 2], now[j * 2 + 1]);
      }
      if (unit == 0) own.x_ring.wait_full();
      if (starts) {
        warpgroup_wait<0>();
        add();
#pragma unroll
        for (int i = 0; i < kGroupsOfUnit * 2; ++i)
          factors[i / 2][i % 2] = CodeSides::scale(words, i % 2, group + i / 2) * kSmallScale<X>;
      }
      fence_fragments(now);
      warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const auto x = own.x_descriptor(unit * kEach + k);
        if (starts && k % kOfGroup == 0) {
          wgmma_codes_from_zero<X>(part[k / kOfGroup], now[k], x);
        } else {
          wgmma_codes<X>(part[k / kOfGroup], now[k], x);
        }
      }
      warpgroup_commit();
      if (!starts) warpgroup_wait<1>();
      if (unit == 0) own.release_before(step + n > 0);
      if (unit == kUnits - 1) own.end_step();
    }
    own.end_block();
  }
  warpgroup_wait<0>();
  add();
}

// Scales and biases of a row of W each, which nobody waits for at the end.
constexpr bool kReadsColumnsEarly = kWeightsUnwritten && (kBiasUnwritten || !params.has_bias);
inline void copy_columns(const CodeTile& tile, void* const* operands) {
  const Epilogue epilogue(operands, params.segments);
  float* to = reinterpret_cast<float*>(shared_memory + kColumnsAt);
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x); row < kTileWeights; row += kGroups128 * 128) {
    const TileColumn at = tile.column_of(row);
    const bool exists = at.output < params.n;
    const int64_t of_w = at.output + at.part * params.n;
    float scale = 1.0f;
    if constexpr (kBytes) scale = exists ? *weight_row(operands, of_w).scale : 0.0f;
    to[row] = scale;
    to[kTileWeights + row] = exists ? epilogue.bias_at(of_w) : 0.0f;
  }
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
  const float* beside = reinterpret_cast<const float*>(shared_memory + kColumnsAt);
  const StoredColumns columns(operands, tile.first_column + column,
                              beside + CodeTile::row_of(column, 0),
                              beside + CodeTile::row_of(column, kParts - 1), kTileWeights);
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
    if constexpr (!kReadsColumnsEarly) wait_on_dependencies();
    copy_columns(tile, operands);
    float sums[kTokens / 8][4];
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sums[i / 4][i % 4] = 0.0f;
    Consumer consumer(x_ring, code_ring, tile);
    if constexpr (kSumsGroups) {
      consume_groups(consumer, tile, operands, sums);
    } else {
      consume(consumer, tile, operands, sums);
    }
    wait_on_dependencies();
    store_sums(tile, operands, sums);
  }
}

}  // namespace npusim
