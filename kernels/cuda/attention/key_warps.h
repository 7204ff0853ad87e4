// The end of a block's rows, whose warps had different keys: each leaves its sums in shared memory,
// from where they are added up.
#pragma once
#include "kernels/cuda/attention/mma_layout.h"
#include "kernels/cuda/attention/rows.h"
#include "kernels/cuda/common/tile_memory.h"

namespace npusim {

// Shared memory: sums [key warp][row][kSumsPitch], then row maxima and row sums [key warp][row].
constexpr int kSumsPitch = kVBlocks * 8 + 8;  // avoids bank conflicts
inline float* all_sums() {
  return reinterpret_cast<float*>(shared_memory);
}
inline float* all_row_maxes() {
  return all_sums() + kKeyWarps * kBlockRows * kSumsPitch;
}
inline float* all_row_sums() {
  return all_row_maxes() + kKeyWarps * kBlockRows;
}

// Accumulator: the warp's row_max and row_sum, as OnlineSoftmax has them, and sums of values.
template <typename Accumulator>
void store_sums(const Accumulator& accumulator) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float row_sum = accumulator.row_sum[half];
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    const int row = warp / kKeyWarps * 16 + lane / 4 + half * 8;
    const int at = warp % kKeyWarps * kBlockRows + row;
    if (lane % 4 == 0) {
      all_row_maxes()[at] = accumulator.row_max[half];
      all_row_sums()[at] = row_sum;
    }
#pragma unroll
    for (int j = 0; j < kVBlocks; ++j) {
      float* to = all_sums() + at * kSumsPitch + j * 8 + lane % 4 * 2;
      to[0] = accumulator.sums[j][half * 2];
      to[1] = accumulator.sums[j][half * 2 + 1];
    }
  }
}

// Adds up the sums of all warps that had keys of one of the block's rows, in their order: a warp.
inline void finish_row(void* const* operands, const Head& head, int first_row, int row) {
  const float *sums = all_sums(), *row_maxes = all_row_maxes(), *row_sums = all_row_sums();
  float row_max = kMasked, row_sum = 0.0f, scales[kKeyWarps];
#pragma unroll
  for (int w = 0; w < kKeyWarps; ++w) row_max = fmaxf(row_max, row_maxes[w * kBlockRows + row]);
#pragma unroll
  for (int w = 0; w < kKeyWarps; ++w) {
    scales[w] = rescale(row_maxes[w * kBlockRows + row], row_max);
    row_sum += scales[w] * row_sums[w * kBlockRows + row];
  }
  const Results results(operands);
  for (int column = threadIdx.x % 32; column < kV; column += 32) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kKeyWarps; ++w) {
      sum += scales[w] * sums[(w * kBlockRows + row) * kSumsPitch + column];
    }
    results.store(head, first_row + row, column, sum, row_max, row_sum);
  }
}

}  // namespace npusim
