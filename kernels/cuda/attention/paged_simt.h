// Attention over pages by multiply-adds, for float32 and heads that are not whole loads. A block
// has a row, up to kHeads query heads of a key/value head, and up to kColumns columns of v; it goes
// unit by unit through the keys that the row sees.
#pragma once
#include "kernels/cuda/attention/paged_sums.h"
#include "kernels/cuda/attention/pages.h"

namespace npusim {

constexpr int kThreads = NPUSIM_BLOCK, kHeads = NPUSIM_HEADS, kColumns = NPUSIM_COLUMNS;
constexpr int kEach = (kHeads * kColumns + kThreads - 1) / kThreads;  // sums of a thread
constexpr int kHeadTiles = (kGroup + kHeads - 1) / kHeads;
enum Operands { kQ, kK, kValue, kTables, kY = 6, kFailure };

struct Shared {
  int64_t page[kUnit];  // of a key; -1: not seen
  float weights[kHeads][kUnit];
  float maxes[kHeads], sums[kHeads];  // of the unit
};

// The weights of a unit's keys, relative to the greatest score of a head; a warp has every few
// heads.
inline void weigh(Shared& s, const T* q, const T* k, int64_t unit, int heads) {
  for (int i = threadIdx.x; i < heads * kUnit; i += kThreads) {
    const int head = i / kUnit, key = i % kUnit;
    float score = kMasked;
    if (s.page[key] >= 0) {
      const T* row = k + s.page[key] * params.k_strides[0] +
                     (unit * kUnit + key) % params.page_tokens * params.k_strides[2];
      const T* query = q + head * params.q_strides[0];
      float dot = 0.0f;
#pragma unroll 4
      for (int d = 0; d < kD; ++d) dot = fmaf(to_float(query[d]), to_float(row[d]), dot);
      score = scaled(dot);
    }
    s.weights[head][key] = score;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < heads; head += kThreads / 32) {
    float a = s.weights[head][lane], b = s.weights[head][lane + 32], most = fmaxf(a, b);
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, far));
    }
    const float base = most == kMasked ? 0.0f : most;
    a = exp2f(a - base);
    b = exp2f(b - base);
    float sum = a + b;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, far);
    s.weights[head][lane] = a;
    s.weights[head][lane + 32] = b;
    if (lane == 0) {
      s.maxes[head] = most;
      s.sums[head] = sum;
    }
  }
  __syncthreads();
}

// Sums of a thread's elements over some of the keys.
struct Sums {
  float row_max[kEach], row_sum[kEach], sums[kEach];

  Sums() {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      row_max[n] = kMasked;
      row_sum[n] = sums[n] = 0.0f;
    }
  }
  void fold(int n, float part_max, float part_sum, float part) {
    fold_sum(sums[n], part, fold_weights(row_max[n], row_sum[n], part_max, part_sum));
  }
};

inline void run(void* const* operands) {
  __shared__ Shared s;
  wait_on_dependencies();
  const PagedTables<kTables> tables(operands, kFailure);
  const int64_t row = blockIdx.x, kv_head = blockIdx.y / kHeadTiles;
  const int first_head = static_cast<int>(blockIdx.y) % kHeadTiles * kHeads;
  const int heads = smaller(kHeads, kGroup - first_head);
  const int first_column = static_cast<int>(blockIdx.z) * kColumns;
  const int columns = smaller(kColumns, kV - first_column);
  const PagedPlace at = tables.place(row);
  if (at.request != -1 && !at.exists) {
    if (threadIdx.x == 0) tables.report_place(at);
    return;
  }
  const int64_t end = at.end(), begin = at.begin(params.window);
  const int64_t head = kv_head * kGroup + first_head;
  const T* q =
      static_cast<const T*>(operands[kQ]) + head * params.q_strides[0] + row * params.q_strides[1];
  const T* k = static_cast<const T*>(operands[kK]) + kv_head * params.k_strides[1];
  const T* v = static_cast<const T*>(operands[kValue]) + kv_head * params.v_strides[1];

  Sums all, chunk;
  for (int64_t unit = begin / kUnit; unit * kUnit < end; ++unit) {
    __syncthreads();  // what the unit before left has been read
    if (threadIdx.x < kUnit) {
      const int64_t key = unit * kUnit + threadIdx.x;
      const bool seen = key >= begin && key < end;
      s.page[threadIdx.x] = seen ? tables.page(at.request, key / params.page_tokens) : -1;
    }
    __syncthreads();
    weigh(s, q, k, unit, heads);
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + static_cast<int>(threadIdx.x);
      const int h = i / kColumns, column = i % kColumns;
      if (h >= heads || column >= columns) continue;
      float sum = 0.0f;
      for (int key = 0; key < kUnit; ++key) {
        if (s.page[key] < 0) continue;
        const T* from = v + s.page[key] * params.v_strides[0] +
                        (unit * kUnit + key) % params.page_tokens * params.v_strides[2];
        sum = fmaf(s.weights[h][key], to_float(from[first_column + column]), sum);
      }
      chunk.fold(n, s.maxes[h], s.sums[h], sum);
    }
    const int64_t next = (unit + 1) * kUnit;
    if (next % kChunk != 0 && next < end) continue;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      all.fold(n, chunk.row_max[n], chunk.row_sum[n], chunk.sums[n]);
    }
    chunk = Sums();
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    const int h = i / kColumns, column = i % kColumns;
    if (h >= heads || column >= columns) continue;
    T* y = static_cast<T*>(operands[kY]) + (head + h) * params.y_strides[0] +
           row * params.y_strides[1];
    y[first_column + column] = encode<T>(all.sums[n] * inverse_sum(all.row_sum[n]));
  }
}

}  // namespace npusim
