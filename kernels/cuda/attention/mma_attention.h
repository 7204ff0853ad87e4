// Attention of 16-bit operands on the tensor cores. A block loads tiles of 64 keys and values to
// shared memory, the next one while it computes with one. Its warps divide the rows, 16 each
// (NPUSIM_ROW_WARPS), and then the keys of a tile, so that few rows keep all warps busy.
#pragma once
#include "kernels/cuda/attention/few_keys.h"
#include "kernels/cuda/attention/key_warps.h"
#include "kernels/cuda/attention/mma_layout.h"
#include "kernels/cuda/attention/rows.h"
#include "kernels/cuda/attention/warp_tile.h"
#include "kernels/cuda/common/tile_memory.h"

namespace npusim {

constexpr int kQBytes = kBlockRows * kDLine, kKBytes = kTile * kDLine, kVBytes = kTile * kVLine;

constexpr bool strides_are_wide(const int64_t (&strides)[3]) {
  return strides[0] % 8 == 0 && strides[1] % 8 == 0 && strides[2] % 8 == 0;
}

// Rows [0, kCount) of kColumns elements to shared memory; those from `valid` on are zero.
template <int kCount, int kColumns, int kLine, typename RowOf>
void fill_rows(unsigned to, bool wide, int64_t valid, const RowOf& row_of) {
  constexpr int kChunks = (kColumns + 15) / 16 * 2;
  if (wide) {
#pragma unroll
    for (int n = 0; n < (kCount * kChunks + kThreads - 1) / kThreads; ++n) {
      const int i = n * kThreads + threadIdx.x, row = i / kChunks, chunk = i % kChunks;
      if (i >= kCount * kChunks) break;
      const bool exists = row < valid && chunk * 8 < kColumns;
      copy_chunk<true>(to + at_chunk(kLine, row, chunk), row_of(exists ? row : 0) + chunk * 8,
                       exists ? 8 : 0);
    }
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < kCount * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      copy_chunk<false>(to + at_chunk(kLine, row, chunk), row_of(row < valid ? row : 0) + chunk * 8,
                        row < valid ? kColumns - chunk * 8 : 0);
    }
  }
}

// Combines the partial results of all blocks of a cluster; each block finishes some of the rows.
// Every block has in shared memory sums [key warp][row][kSumsPitch], then row_maxes and row_sums
// [key warp][row].
template <int kSumsPitch>
void finish_cluster(void* const* operands, const Head& head, int first_row, int splits,
                    unsigned sums) {
  constexpr unsigned kRowMaxesAt = kKeyWarps * kBlockRows * kSumsPitch * 4,
                     kRowSumsAt = kKeyWarps * kBlockRows * 4;
  constexpr int kColumns = (kV + 31) / 32;
  static_assert(kSplit * kKeyWarps <= 32);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int sources = splits * kKeyWarps;
  const Results results(operands);
  for (int row = static_cast<int>(blockIdx.z) * kWarps + warp; row < kBlockRows;
       row += kWarps * kSplit) {
    if (first_row + row >= kRows) break;
    float row_max = kMasked, row_sum = 0.0f;
    if (lane < sources) {
      const unsigned at = sums + kRowMaxesAt + (lane % kKeyWarps * kBlockRows + row) * 4;
      row_max = load_distributed_shared(map_shared_rank(at, lane / kKeyWarps));
      row_sum = load_distributed_shared(map_shared_rank(at + kRowSumsAt, lane / kKeyWarps));
    }
    float new_max = row_max;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
      new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, far));
    }
    const float scale = lane < sources ? rescale(row_max, new_max) : 0.0f;
    float all = 0.0f, y[kColumns] = {};
#pragma unroll 4
    for (int i = 0; i < sources; ++i) {
      const float part = __shfl_sync(0xffffffffu, scale, i);
      all += part * __shfl_sync(0xffffffffu, row_sum, i);
      const unsigned from = map_shared_rank(
          sums + (i % kKeyWarps * kBlockRows + row) * kSumsPitch * 4, i / kKeyWarps);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = smaller(c * 32 + lane, static_cast<int>(kV) - 1);
        y[c] += part * load_distributed_shared(from + column * 4);
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c * 32 + lane < kV)
        results.store(head, first_row + row, c * 32 + lane, y[c], new_max, all);
    }
  }
}

// The rows of a block of them.
inline void run(void* const* operands, int row_block) {
  if constexpr (NPUSIM_CLUSTERED) launch_dependents();
  KeysInUse keys;
  if (!keys.read(operands)) return;
  const Head head(operands);
  const int first_row = row_block * kBlockRows;
  if (first_row >= kRows) return;
  const Tiles tiles(keys, first_row, kBlockRows, kTile);
  const bool wide_q = kD % 8 == 0 && strides_are_wide(params.q_strides) && is_aligned(head.q, 16);
  const bool wide_k = kD % 8 == 0 && strides_are_wide(params.k_strides) && is_aligned(head.k, 16);
  const bool wide_v = kV % 8 == 0 && strides_are_wide(params.v_strides) && is_aligned(head.v, 16);
  if constexpr (kHasFewKeysPath) {
    if (tiles.end - tiles.begin <= kFewKeys && wide_q && wide_k && wide_v) {
      const int own_row = first_row + static_cast<int>(blockIdx.z) * 16;
      if (own_row >= kRows) return;
      const int64_t end = keys.visible_end(Head::query(smaller(own_row + 16, kRows) - 1));
      const int64_t begin = smaller(keys.visible_begin(Head::query(own_row)), end);
      return attend_few(operands, {keys, head, own_row, static_cast<int>(begin),
                                   static_cast<int>(end), shared_memory});
    }
  }
  if (!kClustered && NPUSIM_CLUSTERED && blockIdx.z > 0) return;
  if (!kClustered && tiles.is_empty()) return;
  const unsigned shared = shared_address(shared_memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / kKeyWarps * 16, warp_key = warp % kKeyWarps * kWarpKeys;

  fill_rows<kBlockRows, kD, kDLine>(shared, wide_q, kRows - first_row,
                                    [&](int row) { return head.q_row(first_row + row); });
  const auto fill = [&](int tile) {
    const int64_t key = tiles.begin + static_cast<int64_t>(tile) * kTile;
    const unsigned to = shared + kQBytes + tile % 2 * (kKBytes + kVBytes);
    fill_rows<kTile, kD, kDLine>(to, wide_k, tiles.end - key, [&](int row) {
      return head.k + (key + row) * params.k_strides[2];
    });
    fill_rows<kTile, kV, kVLine>(to + kKBytes, wide_v, tiles.end - key, [&](int row) {
      return head.v + (key + row) * params.v_strides[2];
    });
  };

  const RowVisibility visibility(operands, keys, head, first_row + warp_row);
  const bool has_rows = first_row + warp_row < kRows;

  FullWarpAccumulator accumulator;
  Queries<(kD <= 128)> queries{shared + warp_row * kDLine, {}};
  if (tiles.first < tiles.last) fill(tiles.first);
  cp_async_commit();
#pragma unroll 1
  for (int tile = tiles.first; tile < tiles.last; ++tile) {
    if (tile + 1 < tiles.last) fill(tile + 1);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    if (tile == tiles.first) queries.keep();
    const unsigned at = shared + kQBytes + tile % 2 * (kKBytes + kVBytes);
    const int first = static_cast<int>(tiles.begin) + tile * kTile + warp_key;
    const int left = static_cast<int>(tiles.end) - first;
    if (has_rows && left > 0) {
      float scores[kWarpKeys / 8][4];
      if (visibility.is_product(first, kWarpKeys)) {
        queries.dot(at, warp_key, scores);
        accumulator.update_softmax<true>(scores);
        accumulator.accumulate_values(scores, at + kKBytes, warp_key);
      } else {
        const int sixteens = (left + 15) / 16;
        queries.dot(at, warp_key, scores, sixteens);
        visibility.apply(scores, first);
        accumulator.update_softmax(scores);
        accumulator.accumulate_values(scores, at + kKBytes, warp_key, sixteens);
      }
    }
    __syncthreads();
  }
  if constexpr (!NPUSIM_CLUSTERED) launch_dependents();
  cp_async_wait<0>();

  __syncthreads();
  store_sums(accumulator);
  if constexpr (kClustered) {
    cluster_arrive();
    cluster_wait();
    finish_cluster<kSumsPitch>(operands, head, first_row, tiles.splits, shared);
    cluster_arrive_relaxed();
    cluster_wait();  // others read this block's shared memory until here
    return;
  }
  __syncthreads();
  for (int row = warp; row < kBlockRows && first_row + row < kRows; row += kWarps) {
    finish_row(operands, head, first_row, row);
  }
}

// Blocks of later rows see more keys: they start first.
inline void run(void* const* operands) {
  run(operands, static_cast<int>(params.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x));
}

}  // namespace npusim
