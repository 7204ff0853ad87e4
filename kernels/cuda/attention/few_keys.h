// Attention to few keys: each block of a cluster takes 16 rows of its own and all their keys, so
// that blocks do not wait for each other. Its warps divide the keys, 16 at a time.
//
// Queries and keys are loaded from global memory to registers. A lane's part of a row is chunks of
// eight elements, 32 apart: a permutation of the tensor core's K, the same for both operands.
#pragma once
#include "kernels/cuda/attention/mma_layout.h"
#include "kernels/cuda/attention/rows.h"
#include "kernels/cuda/attention/warp_tile.h"

namespace npusim {

constexpr int kFewTurns = NPUSIM_FEW_TURNS, kFewKeys = kFewTurns * 16 * kWarps;
constexpr int kFewSumsPitch = kV + 8;  // avoids bank conflicts
// Shared memory of a warp: its values, later its sums in the same place.
constexpr int kWarpBytes = larger<int>(16 * kFewSumsPitch * 4, kFewTurns * 16 * kVLine);
constexpr bool kHasFewKeysPath = NPUSIM_CLUSTERED && kBlockRows == 16 * NPUSIM_SPLIT &&
                                 kD % 32 == 0 && kD <= 128 && kV % 16 == 0 && kV <= 128;

// This lane's part of rows g and g + 8 of 16 queries or keys.
struct RowsInRegisters {
  static constexpr int kChunks = kD / 32;
  uint4 part[2][larger(kChunks, 1)];

  template <typename RowOf>
  void read(const RowOf& row_of) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* from = row_of(lane / 4 + half * 8) + lane % 4 * 8;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) part[half][c] = load_kept(from + c * 32);
    }
  }
  // Two accumulators each, so that the mma wait less for each other.
  void dot(const RowsInRegisters& keys, float (&scores)[2][4]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sums[2][4] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 &low = part[0][c], &high = part[1][c], &key = keys.part[j][c];
        mma_16x8x16<T>(sums[0], low.x, high.x, low.y, high.y, key.x, key.y);
        mma_16x8x16<T>(sums[1], low.z, high.z, low.w, high.w, key.z, key.w);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[j][e] = sums[0][e] + sums[1][e];
    }
  }
};

// Four neighbours of a row of y.
inline void store_four(T* to, const float (&sums)[4], float row_sum) {
  const float inverse = inverse_sum(row_sum);
  if (is_aligned(to, 8)) {
    *reinterpret_cast<uint2*>(to) = {pack_pair<T>(sums[0] * inverse, sums[1] * inverse),
                                     pack_pair<T>(sums[2] * inverse, sums[3] * inverse)};
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) to[e] = encode<T>(sums[e] * inverse);
}

// The 16 rows from first_row on, which see keys [begin, end), kFewKeys at most.
struct FewKeys {
  const KeysInUse& keys;
  const Head& head;
  int first_row, begin, end;
  unsigned char* memory;

  int slices() const { return (end - begin + 15) / 16; }
  // The first key of this warp's turn.
  int key(int turn) const {
    return begin + (turn * kWarps + static_cast<int>(threadIdx.x) / 32) * 16;
  }
  unsigned warp_memory() const { return shared_address(memory) + threadIdx.x / 32 * kWarpBytes; }

  void read_keys(int turn, RowsInRegisters& to) const {
    to.read([&](int row) {
      return head.k + static_cast<int64_t>(smaller(key(turn) + row, end - 1)) * params.k_strides[2];
    });
  }
  void fill_values(int turn) const {
    constexpr int kChunks = kV / 8;
#pragma unroll
    for (int n = 0; n < 16 * kChunks / 32 && key(turn) < end; ++n) {
      const int i = n * 32 + threadIdx.x % 32, row = i / kChunks, chunk = i % kChunks;
      const bool exists = key(turn) + row < end;
      const int64_t from = exists ? key(turn) + row : begin;
      cp_async(warp_memory() + turn * 16 * kVLine + at_chunk(kVLine, row, chunk),
               head.v + from * params.v_strides[2] + chunk * 8, exists);
    }
    cp_async_commit();
  }

  // Accumulates this warp's keys.
  void attend(void* const* operands, FullWarpAccumulator& accumulator) const {
    RowsInRegisters queries, k;
    read_keys(0, k);
    queries.read([&](int row) { return head.q_row(smaller(first_row + row, kRows - 1)); });
#pragma unroll
    for (int turn = 0; turn < kFewTurns; ++turn) fill_values(turn);
    const RowVisibility visibility(operands, keys, head, first_row);
#pragma unroll
    for (int turn = 0; turn < kFewTurns && key(turn) < end; ++turn) {
      float scores[2][4];
      queries.dot(k, scores);
      if (turn + 1 < kFewTurns && key(turn + 1) < end) read_keys(turn + 1, k);
      visibility.apply(scores, key(turn));
      accumulator.update_softmax(scores);
      if (turn == 0) {
        cp_async_wait<kFewTurns - 1>();
      } else {
        cp_async_wait<0>();
      }
      __syncwarp();
      accumulator.accumulate_values(scores, warp_memory() + turn * 16 * kVLine, 0);
    }
    cp_async_wait<0>();
    __syncwarp();
  }

  // Adds up the sums of the first `count` warps, four columns of y at a time.
  void store(void* const* operands, int count, const float (*weights)[16][2]) const {
    constexpr int kLanes = kThreads / 16;  // of a row
    const int row = threadIdx.x / kLanes;
    if (first_row + row >= kRows) return;
    T* to = Results(operands).y + head.y_row(first_row + row);
    float row_max = kMasked, row_sum = 0.0f, scales[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < count) row_max = fmaxf(row_max, weights[w][row][0]);
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w >= count) continue;
      scales[w] = rescale(weights[w][row][0], row_max);
      row_sum += scales[w] * weights[w][row][1];
    }
#pragma unroll
    for (int column = threadIdx.x % kLanes * 4; column < kV; column += kLanes * 4) {
      float sums[4] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w >= count) continue;
        const float* from =
            reinterpret_cast<const float*>(memory + w * kWarpBytes) + row * kFewSumsPitch + column;
        const uint4 part = *reinterpret_cast<const uint4*>(from);
        sums[0] += scales[w] * __uint_as_float(part.x);
        sums[1] += scales[w] * __uint_as_float(part.y);
        sums[2] += scales[w] * __uint_as_float(part.z);
        sums[3] += scales[w] * __uint_as_float(part.w);
      }
      store_four(to + column, sums, row_sum);
    }
  }
};

inline void attend_few(void* const* operands, const FewKeys& few) {
  __shared__ float weights[kWarps][16][2];  // row maximum, row sum
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp < few.slices()) {
    FullWarpAccumulator accumulator;
    few.attend(operands, accumulator);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row_sum = accumulator.row_sum[half];
      row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
      row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
      const int row = lane / 4 + half * 8;
      if (lane % 4 == 0) {
        weights[warp][row][0] = accumulator.row_max[half];
        weights[warp][row][1] = row_sum;
      }
#pragma unroll
      for (int j = 0; j < kVBlocks; ++j) {
        store_shared(few.warp_memory() + (row * kFewSumsPitch + j * 8 + lane % 4 * 2) * 4,
                     accumulator.sums[j][half * 2], accumulator.sums[j][half * 2 + 1]);
      }
    }
  }
  __syncthreads();
  few.store(operands, smaller(few.slices(), kWarps), weights);
}

}  // namespace npusim
