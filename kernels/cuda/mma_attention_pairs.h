// Attention of 16-bit operands on the tensor cores. A warp has 16 rows; the warps of a block share
// a tile of 64 keys and values in shared memory, each with rows of its own (NPUSIM_ROW_WARPS) and
// keys of its own (the rest), so that few rows keep all warps busy. While one tile is used the next
// one is copied.
#pragma once
#include "kernels/cuda/mma_attention.h"

namespace npusim {

constexpr int kWarps = 4, kThreads = 128, kTile = 64;
constexpr int kRowWarps = NPUSIM_ROW_WARPS, kKeyWarps = kWarps / kRowWarps;
constexpr int kBlockRows = 16 * kRowWarps, kWarpKeys = kTile / kKeyWarps;
constexpr bool kKeepQ = kD <= 128;

}  // namespace npusim

#include "kernels/cuda/mma_attention_warp.h"

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

extern __shared__ __align__(128) unsigned char shared_memory[];

inline void run(void* const* operands) {
  KeysInUse keys;
  if (!keys.read(operands)) return;
  const Head head(operands);
  const int first_row = static_cast<int>(blockIdx.x) * kBlockRows;
  const Tiles tiles(keys, first_row, kBlockRows, kTile);
  if (tiles.is_spare()) return;
  const unsigned shared = shared_address(shared_memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / kKeyWarps * 16, warp_key = warp % kKeyWarps * kWarpKeys;

  const bool wide_q = kD % 8 == 0 && strides_are_wide(params.q_strides) && is_aligned(head.q, 16);
  const bool wide_k = kD % 8 == 0 && strides_are_wide(params.k_strides) && is_aligned(head.k, 16);
  const bool wide_v = kV % 8 == 0 && strides_are_wide(params.v_strides) && is_aligned(head.v, 16);
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

  // This lane's rows.
  int seen[2], passed[2];
  MaskRow mask[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = smaller(first_row + warp_row + lane / 4 + half * 8, kRows - 1);
    seen[half] = static_cast<int>(keys.seen(Head::query(row)));
    passed[half] = static_cast<int>(keys.passed(Head::query(row)));
    if constexpr (params.has_mask != 0) mask[half] = MaskRow(operands, head, row);
  }

  WarpRows rows;
  Queries queries{shared + warp_row * kDLine, {}};
  if (tiles.first < tiles.last) fill(tiles.first);
  commit_copies();
#pragma unroll 1
  for (int tile = tiles.first; tile < tiles.last; ++tile) {
    if (tile + 1 < tiles.last) fill(tile + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    if (tile == tiles.first) queries.keep();
    const unsigned at = shared + kQBytes + tile % 2 * (kKBytes + kVBytes);
    float scores[kWarpKeys / 8][4];
    queries.dot(at, warp_key, scores);
    const int key = static_cast<int>(tiles.begin) + tile * kTile + warp_key + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kWarpKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2;
        const int i = key + j * 8 + e % 2;
        float score = scaled(scores[j][e]);
        const bool sees = i < seen[half] && i >= passed[half];
        if constexpr (params.has_mask != 0) {
          if (sees) score += mask[half].at(i) * kLog2E;
        }
        scores[j][e] = sees ? score : kNothing;
      }
    }
    rows.weigh(scores);
    rows.add_values(scores, at + kKBytes, warp_key);
    __syncthreads();
  }
  start_successors();
  wait_copies<0>();

  // Sums, tops and totals of all warps meet in shared memory.
  constexpr int kSums = kVBlocks * 8 + 8;  // spreads rows over banks
  __syncthreads();
  float* sums = reinterpret_cast<float*>(shared_memory);  // [key warp][row][kSums]
  float* tops = sums + kKeyWarps * kBlockRows * kSums;
  float* totals = tops + kKeyWarps * kBlockRows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = rows.total[half];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int at = warp % kKeyWarps * kBlockRows + warp_row + lane / 4 + half * 8;
    if (lane % 4 == 0) {
      tops[at] = rows.top[half];
      totals[at] = total;
    }
#pragma unroll
    for (int j = 0; j < kVBlocks; ++j) {
      float* to = sums + at * kSums + j * 8 + lane % 4 * 2;
      to[0] = rows.sums[j][half * 2];
      to[1] = rows.sums[j][half * 2 + 1];
    }
  }
  __syncthreads();
  const Results results(operands);
  for (int row = warp; row < kBlockRows && first_row + row < kRows; row += kWarps) {
    float top = kNothing, total = 0.0f, shares[kKeyWarps];
#pragma unroll
    for (int w = 0; w < kKeyWarps; ++w) top = fmaxf(top, tops[w * kBlockRows + row]);
#pragma unroll
    for (int w = 0; w < kKeyWarps; ++w) {
      shares[w] = shrink(tops[w * kBlockRows + row], top);
      total += shares[w] * totals[w * kBlockRows + row];
    }
    for (int column = lane; column < kV; column += 32) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kKeyWarps; ++w) {
        sum += shares[w] * sums[(w * kBlockRows + row) * kSums + column];
      }
      results.store(head, first_row + row, column, sum, top, total);
    }
  }
}

}  // namespace npusim
