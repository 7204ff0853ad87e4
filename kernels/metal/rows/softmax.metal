// softmax and log_softmax along the middle of a dense [outer, size, inner]. Rows (inner 1) are
// shared by NPUSIM_LANES threads, and read once where they fit into registers; with inner > 1 a
// thread takes a column. A row of -inf alone is NaN, as in PyTorch. y may be x's memory if the
// dtypes are equal.
#include "kernels/metal/common/row.h"

namespace npusim {

typedef Storage<params.x_dtype> X;
typedef Storage<params.y_dtype> Y;
constant constexpr int kLanes = NPUSIM_LANES;
constant constexpr int kPack = NPUSIM_PACK;

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

inline void softmax_column(device const X* x, device Y* y) {
  Statistics s = {-INFINITY, 0.0f};
  for (int64_t i = 0; i < params.size; ++i)
    s.max = Larger()(s.max, decode<float>(x[i * params.inner]));
  for (int64_t i = 0; i < params.size; ++i)
    s.sum += scalar::exp(decode<float>(x[i * params.inner]) - s.max);
  const float scale = s.scale();
  for (int64_t i = 0; i < params.size; ++i)
    y[i * params.inner] = encode<Y>(s.result(decode<float>(x[i * params.inner]), scale));
}

}  // namespace npusim

using namespace npusim;
[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    device const X* x [[buffer(0)]], device Y* y [[buffer(1)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  threadgroup float room[NPUSIM_BLOCK / 32];
  const int64_t item = static_cast<int64_t>(group) * NPUSIM_BLOCK + thread_of_group;
  if (params.inner == 1) {
    const int64_t row = item / kLanes;
    if (row >= params.outer) return;
    softmax_row(x + row * params.size, y + row * params.size, room, thread_of_group);
  } else {
    if (item >= params.outer * params.inner) return;
    const int64_t at = item / params.inner * params.size * params.inner + item % params.inner;
    softmax_column(x + at, y + at);
  }
}
