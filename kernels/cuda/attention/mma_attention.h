// Attention of 16-bit operands on the tensor cores. A warp has 16 rows; the warps of a block share
// a tile of 64 keys and values in shared memory, each with rows of its own (NPUSIM_ROW_WARPS) and
// keys of its own (the rest), so that few rows keep all warps busy. While one tile is used the next
// one is copied.
#pragma once
#include "kernels/cuda/attention/rows.h"

namespace npusim {

constexpr int kWarps = NPUSIM_WARPS, kThreads = kWarps * 32, kTile = 64;
constexpr int kRowWarps = NPUSIM_ROW_WARPS, kKeyWarps = kWarps / kRowWarps;
constexpr int kBlockRows = 16 * kRowWarps, kWarpKeys = kTile / kKeyWarps;
constexpr bool kKeepQ = kD <= 128;

}  // namespace npusim

#include "kernels/cuda/attention/few_keys.h"
#include "kernels/cuda/attention/warp_tile.h"

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

// Adds up the rows of all blocks of a cluster, each of which finishes its share. In shared memory
// every block has sums [key warp][row][kSums], tops and totals [key warp][row].
template <int kSums>
void finish_cluster(void* const* operands, const Head& head, int first_row, int spans,
                    unsigned sums) {
  constexpr unsigned kTops = kKeyWarps * kBlockRows * kSums * 4,
                     kTotals = kKeyWarps * kBlockRows * 4;
  constexpr int kColumns = (kV + 31) / 32;
  static_assert(kSplit * kKeyWarps <= 32);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int sources = spans * kKeyWarps;
  const Results results(operands);
  for (int row = static_cast<int>(blockIdx.z) * kWarps + warp; row < kBlockRows;
       row += kWarps * kSplit) {
    if (first_row + row >= kRows) break;
    float top = kNothing, total = 0.0f;
    if (lane < sources) {
      const unsigned at = sums + kTops + (lane % kKeyWarps * kBlockRows + row) * 4;
      top = load_distributed_shared(map_shared_rank(at, lane / kKeyWarps));
      total = load_distributed_shared(map_shared_rank(at + kTotals, lane / kKeyWarps));
    }
    float most = top;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, far));
    }
    const float share = lane < sources ? shrink(top, most) : 0.0f;
    float all = 0.0f, y[kColumns] = {};
#pragma unroll 4
    for (int i = 0; i < sources; ++i) {
      const float part = __shfl_sync(0xffffffffu, share, i);
      all += part * __shfl_sync(0xffffffffu, total, i);
      const unsigned from =
          map_shared_rank(sums + (i % kKeyWarps * kBlockRows + row) * kSums * 4, i / kKeyWarps);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = smaller(c * 32 + lane, static_cast<int>(kV) - 1);
        y[c] += part * load_distributed_shared(from + column * 4);
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c * 32 + lane < kV) results.store(head, first_row + row, c * 32 + lane, y[c], most, all);
    }
  }
}

inline void run(void* const* operands) {
  if constexpr (NPUSIM_CLUSTERED) launch_dependents();
  KeysInUse keys;
  if (!keys.read(operands)) return;
  const Head head(operands);
  // Later rows see more keys: they begin first.
  const int first_row =
      static_cast<int>(params.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * kBlockRows;
  const Tiles tiles(keys, first_row, kBlockRows, kTile);
  const bool wide_q = kD % 8 == 0 && strides_are_wide(params.q_strides) && is_aligned(head.q, 16);
  const bool wide_k = kD % 8 == 0 && strides_are_wide(params.k_strides) && is_aligned(head.k, 16);
  const bool wide_v = kV % 8 == 0 && strides_are_wide(params.v_strides) && is_aligned(head.v, 16);
  if constexpr (kTakesFew) {
    if (tiles.end - tiles.begin <= kFewKeys && wide_q && wide_k && wide_v) {
      const int own_row = first_row + static_cast<int>(blockIdx.z) * 16;
      if (own_row >= kRows) return;
      const int64_t end = keys.seen(Head::query(smaller(own_row + 16, kRows) - 1));
      const int64_t begin = smaller(keys.passed(Head::query(own_row)), end);
      return attend_few(operands, {keys, head, own_row, static_cast<int>(begin),
                                   static_cast<int>(end), shared_memory});
    }
  }
  if (!kClustered && NPUSIM_CLUSTERED && blockIdx.z > 0) return;
  if (!kClustered && tiles.is_spare()) return;
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

  const RowSight sight(operands, keys, head, first_row + warp_row);

  WarpRows rows;
  Queries queries{shared + warp_row * kDLine, {}};
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
    float scores[kWarpKeys / 8][4];
    queries.dot(at, warp_key, scores);
    sight.apply(scores, static_cast<int>(tiles.begin) + tile * kTile + warp_key);
    rows.weigh(scores);
    rows.add_values(scores, at + kKBytes, warp_key);
    __syncthreads();
  }
  if constexpr (!NPUSIM_CLUSTERED) launch_dependents();
  cp_async_wait<0>();

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
  if constexpr (kClustered) {
    cluster_arrive();
    cluster_wait();
    finish_cluster<kSums>(operands, head, first_row, tiles.spans, shared_address(sums));
    cluster_arrive_relaxed();
    cluster_wait();  // others read this block's shared memory until here
    return;
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
