// Attention of many rows and keys on Hopper, warp-specialized (Shah et al., arXiv:2407.08608): a
// producer warp loads tiles of keys and values by TMA, and groups of four warps have 64 rows of
// queries each. A group starts the scores of a tile together with the weighted values of the tile
// before, and weighs the scores while those are multiplied; groups take turns in starting, so that
// one weighs while the other multiplies.
#pragma once
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/attention/plain_tiles.h"
#include "kernels/cuda/attention/tma_keys.h"
#include "kernels/cuda/common/tile_memory.h"

namespace npusim {

// Registers of this warp's threads from here on, where a group of warps that loads leaves its own
// to those that multiply.
template <int kCount>
void keep_registers() {
  if constexpr (NPUSIM_REGISTERS > 0)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
void take_registers() {
  if constexpr (kCount > 0) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Named barriers of a block: 0 is __syncthreads; one for a group alone, one for its turn.
inline void sync_group(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}
// The turns of groups to start products, one after the other.
struct Turns {
  int group;
  static int barrier(int group) { return 1 + kGroups + group; }
  static void pass_to(int group) {
    if constexpr (kGroups > 1) asm volatile("bar.arrive %0, 256;" ::"r"(barrier(group)) : "memory");
  }
  void begin() const {
    if (group == kGroups - 1) pass_to(0);
  }
  void wait() const {
    if constexpr (kGroups > 1) asm volatile("bar.sync %0, 256;" ::"r"(barrier(group)) : "memory");
  }
  // The last group's last turn has nobody to follow.
  void pass(bool is_last) const {
    if (group < kGroups - 1) {
      pass_to(group + 1);
    } else if (!is_last) {
      pass_to(0);
    }
  }
};

// Scores are weighed as dot products where they are no more than these, times kFactor.
constexpr bool kWeighsDots = params.softcap == 0 && params.has_mask == 0 && kFactor > 0;

// One group's 64 rows.
struct RowGroup {
  const KeyPipeline& pipeline;
  int group = static_cast<int>(threadIdx.x) / 128;
  float scores[kTileKeys / 8][4];
  unsigned weights[kTileKeys / 16][4];  // as fragments
  float sums[kV / 8][4];
  OnlineSoftmax<2> softmax;

  explicit RowGroup(const KeyPipeline& pipeline) : pipeline(pipeline) {
#pragma unroll
    for (int j = 0; j < kV / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] = 0.0f;
    }
  }

  void load_queries(const Head& head, int first_row) const {
    constexpr int kChunks = (kD + 15) / 16 * 2;
#pragma unroll
    for (int n = 0; n < 64 * kChunks / 128; ++n) {
      const int i = n * 128 + static_cast<int>(threadIdx.x) % 128;
      const int row = i / kChunks, chunk = i % kChunks;
      const bool exists = first_row + row < kRows && chunk * 8 < kD;
      cp_async(pipeline.queries(group) + at_panel_chunk(kQueryPanelBytes, row, chunk),
               head.q_row(exists ? first_row + row : 0) + (exists ? chunk * 8 : 0), exists);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async_shared();
    sync_group(group);
  }

  // Makes zeros of what a tile of keys, which has arrived, holds of other heads: it may be no
  // number. Both groups do, before they start its scores.
  void clear_rest(int tile) const {
    if constexpr (!kHasRest) return;
    const int row = static_cast<int>(threadIdx.x) % 128;
    if (row < kTileKeys)
      store_shared(pipeline.keys(tile) + at_panel_chunk(kPanelBytes, row, kD / 8),
                   uint4{0, 0, 0, 0});
    fence_proxy_async_shared();
    sync_group(group);
  }
  void start_scores(int tile) {
    const unsigned q = pipeline.queries(group), k = pipeline.keys(tile);
    wgmma_from_zero<T>(scores, matrix_descriptor(q), matrix_descriptor(k));
#pragma unroll
    for (int step = 1; step < (kD + 15) / 16; ++step) {
      const int panel = step / 4, at = step % 4 * 32;
      wgmma<T>(scores, matrix_descriptor(q + panel * kQueryPanelBytes + at),
               matrix_descriptor(k + panel * kPanelBytes + at));
    }
    warpgroup_commit();
  }
  void start_values(int tile) {
    const unsigned v = pipeline.values(tile);
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step)
      wgmma_fragment<T>(sums, weights[step], matrix_descriptor(v + step * 2048, kPanelBytes));
    warpgroup_commit();
  }
  static void release(unsigned barrier) {
    if (threadIdx.x % 32 == 0) arrive(barrier);
  }

  // Turns scores of the keys from `first` on into weights.
  void weigh(const RowVisibility& visibility, int first, float (&corrections)[2]) {
    if constexpr (kWeighsDots) {
      if (!visibility.is_product(first, kTileKeys)) visibility.hide(scores, first);
    } else {
      visibility.apply(scores, first);
    }
    softmax.weigh<kWeighsDots>(scores, corrections);
  }
  void keep_weights() {
#pragma unroll
    for (int i = 0; i < kTileKeys / 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float (&pair)[4] = scores[2 * i + e / 2];
        weights[i][e] = pack_pair<T>(pair[e % 2 * 2], pair[e % 2 * 2 + 1]);
      }
    }
  }
  void rescale_sums(const float (&corrections)[2]) {
#pragma unroll
    for (int j = 0; j < kV / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] *= corrections[e / 2];
    }
  }

  // All tiles, of keys from first_key on.
  void run(const RowVisibility& visibility, int first_key, int tiles) {
    const Turns turns{group};
    float corrections[2];
    wait_barrier(pipeline.full_keys(0), 0);
    clear_rest(0);
    warpgroup_arrive();
    start_scores(0);
    turns.begin();
    warpgroup_wait<0>();
    warpgroup_fence_operand(scores);
    release(pipeline.empty_keys(0));
    weigh(visibility, first_key, corrections);
    keep_weights();
    const auto wait_for_keys = [&](int tile) {
      if (tile >= tiles) return;
      wait_barrier(pipeline.full_keys(tile), KeyPipeline::phase(tile));
      clear_rest(tile);
    };
    wait_for_keys(1);
#pragma unroll 1
    for (int tile = 1; tile < tiles; ++tile) {
      turns.wait();
      warpgroup_fence_operand(sums);
      warpgroup_fence_operand(weights);
      warpgroup_arrive();
      start_scores(tile);
      wait_barrier(pipeline.full_values(tile - 1), KeyPipeline::phase(tile - 1));
      start_values(tile - 1);
      turns.pass(tile + 1 == tiles);
      warpgroup_wait<1>();
      warpgroup_fence_operand(scores);
      release(pipeline.empty_keys(tile));
      weigh(visibility, first_key + tile * kTileKeys, corrections);
      // A wait in a loop, past which the assembler does not move the exponentials: they are to run
      // before the next wait.
      warpgroup_fence_operand(scores);
      wait_for_keys(tile + 1);
      warpgroup_wait<0>();
      warpgroup_fence_operand(sums);
      warpgroup_fence_operand(weights);
      release(pipeline.empty_values(tile - 1));
      rescale_sums(corrections);
      keep_weights();
    }
    wait_barrier(pipeline.full_values(tiles - 1), KeyPipeline::phase(tiles - 1));
    warpgroup_fence_operand(sums);
    warpgroup_fence_operand(weights);
    warpgroup_arrive();
    start_values(tiles - 1);
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
  }

  // Writes y, by way of the queries' shared memory where rows of y are whole chunks.
  void store(const Head& head, int first_row, T* y) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row_sum = softmax.row_sum[half];
      row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
      row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
      inverse[half] = inverse_sum(row_sum);
    }
    sync_group(group);  // nobody reads queries any more
#pragma unroll
    for (int j = 0; j < kV / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + lane / 4 + half * 8;
        store_shared(
            pipeline.queries(group) + at_panel_chunk(kQueryPanelBytes, row, j) + lane % 4 * 4,
            pack_pair<T>(sums[j][half * 2] * inverse[half], sums[j][half * 2 + 1] * inverse[half]));
      }
    }
    __syncwarp();
    constexpr int kChunks = kV / 8;
    const bool wide = params.y_strides[0] % 8 == 0 && params.y_strides[1] % 8 == 0 &&
                      params.y_strides[2] % 8 == 0 && is_aligned(y, 16);
#pragma unroll
    for (int n = 0; n < (16 * kChunks + 31) / 32; ++n) {
      const int i = n * 32 + lane, row = warp_row + i / kChunks, chunk = i % kChunks;
      if (i >= 16 * kChunks || first_row + row >= kRows) continue;
      const uint4 all =
          load_shared(pipeline.queries(group) + at_panel_chunk(kQueryPanelBytes, row, chunk));
      T* to = y + head.y_row(first_row + row) + chunk * 8;
      if (wide) {
        *reinterpret_cast<uint4*>(to) = all;
      } else {
        const unsigned words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          to[e] = T{static_cast<unsigned short>(words[e / 2] >> e % 2 * 16)};
      }
    }
  }
};

// Whether TMA and 16-byte copies can read queries, keys and values.
inline bool operands_are_chunk_aligned(void* const* operands) {
  return is_aligned(operands[0], 16) && is_aligned(operands[1], 16) && is_aligned(operands[2], 16);
}

inline void run_tma(void* const* operands, const TensorMap& key_map, const TensorMap& value_map) {
  KeysInUse keys;
  if (!keys.read(operands)) return;
  // Heads lie next to each other, so that with a causal mask the longest rows of all start first.
  const int index = static_cast<int>(blockIdx.x + gridDim.x * blockIdx.y);
  const int heads = static_cast<int>(gridDim.y), row_block = index / heads;
  const Head head(operands, index % heads);
  const int first_row =
      (params.causal ? static_cast<int>(gridDim.x) - 1 - row_block : row_block) * NPUSIM_TMA_ROWS;
  const Tiles tiles(keys, first_row, NPUSIM_TMA_ROWS, kTileKeys);
  const KeyPipeline pipeline{shared_address(shared_memory)};
  const bool aligned = operands_are_chunk_aligned(operands);
  if (threadIdx.x == 0) pipeline.make_barriers();
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    keep_registers<24>();
    if (aligned && tiles.last > 0 && threadIdx.x < kConsumers + 32) {
      KeyProducer{pipeline,
                  key_map,
                  value_map,
                  HeadPlace(params.k_strides, head),
                  HeadPlace(params.v_strides, head),
                  static_cast<int>(tiles.begin),
                  static_cast<int>(tiles.end - tiles.begin),
                  tiles.last}
          .run();
    }
  } else {
    take_registers<NPUSIM_REGISTERS>();
    if (!aligned) return run_plain_tiles(operands);
    RowGroup rows(pipeline);
    const int group_row = first_row + rows.group * 64;
    rows.load_queries(head, group_row);
    const RowVisibility visibility(operands, keys, head,
                                   group_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16);
    if (tiles.last > 0) rows.run(visibility, static_cast<int>(tiles.begin), tiles.last);
    rows.store(head, group_row, static_cast<T*>(operands[kOperands - 1]));
  }
}

}  // namespace npusim
