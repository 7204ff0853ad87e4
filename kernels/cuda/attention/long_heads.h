// Attention of heads too long for a tile: a block has one row, whose scores go through global
// memory.
#pragma once
#include "kernels/cuda/attention/rows.h"

namespace npusim {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Over all threads, in a fixed order.
template <typename F>
float reduce(float value, const F& f) {
  __shared__ float parts[kWarps];
#pragma unroll
  for (int far = 16; far > 0; far /= 2) {
    value = f(value, __shfl_xor_sync(0xffffffffu, value, far));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) value = f(value, parts[i]);
  return value;
}

inline void run(void* const* operands) {
  KeysInUse keys;
  if (!keys.read(operands)) return;
  const Head head(operands);
  const int row = static_cast<int>(blockIdx.x);
  float* scores = static_cast<float*>(operands[kOperands]) +
                  (static_cast<int64_t>(blockIdx.y) * kRows + row) * params.kv_len;
  const int64_t end = keys.visible_end(Head::query(row));
  const int64_t begin = smaller(keys.visible_begin(Head::query(row)), end);
  const T* q = head.q_row(row);
  MaskRow mask;
  if constexpr (params.has_mask != 0) mask = MaskRow(operands, head, row);
  float row_max = kMasked;
  for (int64_t key = begin + threadIdx.x / 32; key < end; key += kWarps) {
    const T* k = head.k + key * params.k_strides[2];
    float dot = 0.0f;
    for (int d = threadIdx.x % 32; d < kD; d += 32) dot += to_float(q[d]) * to_float(k[d]);
#pragma unroll
    for (int far = 16; far > 0; far /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, far);
    float score = scaled(dot);
    if constexpr (params.has_mask != 0) score += mask.at(key);
    if (threadIdx.x % 32 == 0) scores[key] = score;
    row_max = fmaxf(row_max, score);
  }
  row_max = reduce(row_max, [](float a, float b) { return fmaxf(a, b); });
  const float base = row_max == kMasked ? 0.0f : row_max;
  float row_sum = 0.0f;
  for (int64_t key = begin + threadIdx.x; key < end; key += kThreads) {
    scores[key] = exp2f(scores[key] - base);
    row_sum += scores[key];
  }
  row_sum = reduce(row_sum, [](float a, float b) { return a + b; });
  T* y = static_cast<T*>(operands[kOperands - 1]) + head.y_row(row);
  for (int column = threadIdx.x; column < kV; column += kThreads) {
    float sum = 0.0f;
    for (int64_t key = begin; key < end; ++key) {
      sum += scores[key] * to_float(head.v[key * params.v_strides[2] + column]);
    }
    y[column] = encode<T>(row_sum == 0.0f ? 0.0f : sum / row_sum);
  }
}

}  // namespace npusim
