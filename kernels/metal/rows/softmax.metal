// softmax and log_softmax along the middle of a dense [outer, size, inner]. Rows (inner 1) are
// shared by NPUSIM_LANES threads, and read once where they fit into registers; with inner > 1
// NPUSIM_PARTS threads of a group share a column, and neighbours have neighbouring columns. A row
// of -inf alone is NaN, as in PyTorch. y may be x's memory if the dtypes are equal.
#include "kernels/metal/common/row.h"

namespace npusim {

typedef Storage<params.x_dtype> X;
typedef Storage<params.y_dtype> Y;
constant constexpr int kLanes = NPUSIM_LANES;
constant constexpr int kPack = NPUSIM_PACK;
constant constexpr int kParts = NPUSIM_PARTS, kColumns = NPUSIM_BLOCK / kParts;

// The largest element and the sum of the exponentials of all others' distances from it.
struct Statistics {
  float max, sum;

  float scale() const { return params.log ? scalar::log(sum) : 1.0f / sum; }
  float result(float x, float scale) const {
    return params.log ? (x - max) - scale : scalar::exp(x - max) * scale;
  }
};

inline void softmax_row(device const X* x, device Y* y, threadgroup float* room,
                        uint thread_index) {
  typedef Row<X, params.size, kLanes, kPack> Elements;
  const Elements row(x, static_cast<int>(thread_index % kLanes));
  Statistics s = {-INFINITY, 0.0f};
  float v[kPack];
  for (int64_t r = 0; r < Elements::kRounds && row.exists(r); ++r) {
    row.numbers(r, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) s.max = Larger()(s.max, v[i]);
  }
  s.max = fold_threads<kLanes>(s.max, Larger(), room, thread_index);
  for (int64_t r = 0; r < Elements::kRounds && row.exists(r); ++r) {
    row.numbers(r, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) s.sum += scalar::exp(v[i] - s.max);
  }
  s.sum = fold_threads<kLanes>(s.sum, Plus(), room, thread_index);
  const float scale = s.scale();
  for (int64_t r = 0; r < Elements::kRounds && row.exists(r); ++r) {
    row.numbers(r, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] = s.result(v[i], scale);
    write_pack<kPack>(y + row.position(r), v);
  }
}

// Folds what the threads of a column hold, in a tree; all of them get the result.
template <typename F>
inline float fold_parts(float x, F f, threadgroup float* room, int thread_index) {
  if (kParts == 1) return x;
  metal::threadgroup_barrier(
      metal::mem_flags::mem_threadgroup);  // what an earlier fold left has been read
  room[thread_index] = x;
  for (int width = kParts / 2; width > 0; width /= 2) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (thread_index < width * kColumns)
      room[thread_index] = f(room[thread_index], room[thread_index + width * kColumns]);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  return room[thread_index % kColumns];
}

// Threads of columns beyond the last only keep step.
inline void softmax_column(device const X* x, device Y* y, threadgroup float* room,
                           int thread_index, bool exists) {
  const int64_t first = exists ? thread_index / kColumns : params.size;
  Statistics s = {-INFINITY, 0.0f};
  for (int64_t i = first; i < params.size; i += kParts)
    s.max = Larger()(s.max, decode<float>(x[i * params.inner]));
  s.max = fold_parts(s.max, Larger(), room, thread_index);
  for (int64_t i = first; i < params.size; i += kParts)
    s.sum += scalar::exp(decode<float>(x[i * params.inner]) - s.max);
  s.sum = fold_parts(s.sum, Plus(), room, thread_index);
  const float scale = s.scale();
  for (int64_t i = first; i < params.size; i += kParts)
    y[i * params.inner] = encode<Y>(s.result(decode<float>(x[i * params.inner]), scale));
}

}  // namespace npusim

using namespace npusim;
[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    device const X* x [[buffer(0)]], device Y* y [[buffer(1)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  threadgroup float room[kParts > 1 ? NPUSIM_BLOCK : NPUSIM_BLOCK / 32];
  if (params.inner == 1) {
    const int64_t row = (static_cast<int64_t>(group) * NPUSIM_BLOCK + thread_of_group) / kLanes;
    if (row >= params.outer) return;
    softmax_row(x + row * params.size, y + row * params.size, room, thread_of_group);
  } else {
    const int thread_index = static_cast<int>(thread_of_group);
    const int64_t column = static_cast<int64_t>(group) * kColumns + thread_index % kColumns;
    const int64_t at = column / params.inner * params.size * params.inner + column % params.inner;
    softmax_column(x + at, y + at, room, thread_index, column < params.outer * params.inner);
  }
}
