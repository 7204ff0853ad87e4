// Group norm of [batch, channels, spatial] with any strides, and an activation after it. A
// threadgroup takes one group of one batch element, and walks it along its contiguous dimension. y
// may be x's memory if dtypes and strides are equal.
#include "kernels/metal/common/threads.h"
#include "kernels/metal/rows/norm_operands.h"

namespace npusim {

typedef Storage<params.x_dtype> X;
typedef Storage<params.w_dtype> W;
typedef Storage<params.y_dtype> Y;
constant constexpr int64_t kChannels = params.channels / params.groups;
constant constexpr int64_t kElements = kChannels * params.spatial;
constant constexpr bool kChannelsLast = params.x_strides[1] == 1 && params.x_strides[2] != 1;

struct Place {
  int64_t channel, position;
};
inline Place place_of(int64_t i) {
  if (kChannelsLast) return {i % kChannels, i / kChannels};
  return {i / params.spatial, i % params.spatial};
}
inline float element(device const X* x, Place at) {
  return decode<float>(x[at.channel * params.x_strides[1] + at.position * params.x_strides[2]]);
}

inline void group_norm(device const X* x, device const W* weight, device const W* bias, device Y* y,
                       threadgroup float* room, uint group, uint thread_index) {
  const int64_t batch = group / params.groups, first = group % params.groups * kChannels;
  x += batch * params.x_strides[0] + first * params.x_strides[1];
  y += batch * params.y_strides[0] + first * params.y_strides[1];
  const float n = static_cast<float>(kElements);
  float sum = 0.0f, gap = 0.0f, squares = 0.0f;
  for (int64_t i = thread_index; i < kElements; i += NPUSIM_BLOCK) sum += element(x, place_of(i));
  const float center = fold_threads<NPUSIM_BLOCK>(sum, Plus(), room, thread_index) / n;
  for (int64_t i = thread_index; i < kElements; i += NPUSIM_BLOCK) {
    const float distance = element(x, place_of(i)) - center;
    gap += distance;
    squares += distance * distance;
  }
  gap = fold_threads<NPUSIM_BLOCK>(gap, Plus(), room, thread_index) / n;
  squares = fold_threads<NPUSIM_BLOCK>(squares, Plus(), room, thread_index);
  const float variance = squares / n - gap * gap;
  const float scale = scalar::rsqrt((variance < 0.0f ? 0.0f : variance) + params.eps);
  for (int64_t i = thread_index; i < kElements; i += NPUSIM_BLOCK) {
    const Place at = place_of(i);
    float v = (element(x, at) - center - gap) * scale;
    if (params.has_weight) v *= decode<float>(weight[first + at.channel]);
    if (params.has_bias) v += decode<float>(bias[first + at.channel]);
    y[at.channel * params.y_strides[1] + at.position * params.y_strides[2]] =
        encode<Y>(scalar::activate<params.act>(v));
  }
}

}  // namespace npusim

using namespace npusim;
[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    NPUSIM_TENSORS, uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  threadgroup float room[NPUSIM_BLOCK / 32];
  group_norm(x, NPUSIM_VECTORS_GIVEN, y, room, group, thread_of_group);
}
