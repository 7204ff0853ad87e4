// Layer norm and RMS norm of rows of contiguous elements, shared by NPUSIM_LANES threads, and read
// once where they fit into registers. The variance is of distances from the mean, corrected by what
// rounding moved it, so that a large mean costs no digits. y may be x's memory if dtypes and
// strides are equal.
#include "kernels/metal/common/row.h"
#include "kernels/metal/rows/norm_operands.h"

namespace npusim {

typedef Storage<params.x_dtype> X;
typedef Storage<params.w_dtype> W;
typedef Storage<params.y_dtype> Y;
constant constexpr int kLanes = NPUSIM_LANES;
constant constexpr int kPack = NPUSIM_PACK;
typedef Row<X, params.size, kLanes, kPack> Elements;

// A row's result is (x - center) * scale + offset.
struct Affine {
  float center, scale, offset;
};

inline Affine rms_of(thread const Elements& row, threadgroup float* room, uint thread_index) {
  float squares = 0.0f, v[kPack];
  for (int64_t r = 0; r < Elements::kRounds && row.exists(r); ++r) {
    row.numbers(r, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) squares += v[i] * v[i];
  }
  squares = fold_threads<kLanes>(squares, Plus(), room, thread_index);
  const float mean = squares / static_cast<float>(params.size);
  return {0.0f, scalar::rsqrt(mean + params.eps), 0.0f};
}

inline Affine affine_of(thread const Elements& row, threadgroup float* room, uint thread_index) {
  const float n = static_cast<float>(params.size);
  float sum = 0.0f, gap = 0.0f, squares = 0.0f, v[kPack];
  for (int64_t r = 0; r < Elements::kRounds && row.exists(r); ++r) {
    row.numbers(r, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += v[i];
  }
  const float center = fold_threads<kLanes>(sum, Plus(), room, thread_index) / n;
  for (int64_t r = 0; r < Elements::kRounds && row.exists(r); ++r) {
    row.numbers(r, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float distance = v[i] - center;
      gap += distance;
      squares += distance * distance;
    }
  }
  gap = fold_threads<kLanes>(gap, Plus(), room, thread_index) / n;
  squares = fold_threads<kLanes>(squares, Plus(), room, thread_index);
  const float variance = squares / n - gap * gap;
  const float scale = scalar::rsqrt((variance < 0.0f ? 0.0f : variance) + params.eps);
  return {center, scale, -gap * scale};
}

inline void norm_row(device const X* x, device const W* weight, device const W* bias, device Y* y,
                     threadgroup float* room, uint thread_index) {
  const Elements row(x, static_cast<int>(thread_index % kLanes));
  const Affine a =
      params.kind == 1 ? rms_of(row, room, thread_index) : affine_of(row, room, thread_index);
  float v[kPack];
  for (int64_t r = 0; r < Elements::kRounds && row.exists(r); ++r) {
    row.numbers(r, v);
    const int64_t at = row.position(r);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      v[i] = (v[i] - a.center) * a.scale + a.offset;
      if (params.has_weight) v[i] *= decode<float>(weight[at + i]);
      if (params.has_bias) v[i] += decode<float>(bias[at + i]);
    }
    write_pack<kPack>(y + at, v);
  }
}

}  // namespace npusim

using namespace npusim;
[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    NPUSIM_TENSORS, uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  threadgroup float room[NPUSIM_BLOCK / 32];
  const int64_t row = (static_cast<int64_t>(group) * NPUSIM_BLOCK + thread_of_group) / kLanes;
  if (row >= params.rows) return;
  norm_row(x + row * params.x_row_stride, NPUSIM_VECTORS_GIVEN, y + row * params.y_row_stride, room,
           thread_of_group);
}
