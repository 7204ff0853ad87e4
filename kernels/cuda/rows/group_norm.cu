// Group norm of [batch, channels, spatial] with any strides, and an activation after it. y may be
// x's memory if dtypes and strides are equal. A block takes one group of one batch element, and
// walks it along its contiguous dimension; with NPUSIM_PARTS many blocks share it
// (group_norm_parts.h).
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/scalar_ops.h"
#include "kernels/cuda/rows/norm_operands.h"

#ifdef NPUSIM_PARTS
#include "kernels/cuda/rows/group_norm_parts.h"
#else

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;
using Y = Storage<params.y_dtype>;
using C = Compute<params.x_dtype>;
constexpr int64_t kChannels = params.channels / params.groups;
constexpr int64_t kElements = kChannels * params.spatial;
constexpr bool kChannelsLast = params.x_strides[1] == 1 && params.x_strides[2] != 1;

struct Place {
  int64_t channel, position;
};
inline Place place_of(int64_t i) {
  if constexpr (kChannelsLast) return {i % kChannels, i / kChannels};
  return {i / params.spatial, i % params.spatial};
}
template <typename T>
inline T* element(T* base, const Place& at, int64_t channel_stride, int64_t position_stride) {
  return base + at.channel * channel_stride + at.position * position_stride;
}

inline void norm(const void* x_memory, const void* weight, const void* bias, void* y_memory) {
  const int64_t batch = blockIdx.x / params.groups, group = blockIdx.x % params.groups;
  const int64_t first = group * kChannels;
  const X* x =
      static_cast<const X*>(x_memory) + batch * params.x_strides[0] + first * params.x_strides[1];
  Y* y = static_cast<Y*>(y_memory) + batch * params.y_strides[0] + first * params.y_strides[1];
  const auto read = [&](const Place& at) {
    return decode<C>(*element(x, at, params.x_strides[1], params.x_strides[2]));
  };
  constexpr C n = static_cast<C>(kElements);
  C sum = 0, gap = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < kElements; i += NPUSIM_BLOCK) sum += read(place_of(i));
  const C center = fold_lanes<NPUSIM_BLOCK>(sum, Plus{}) / n;
  for (int64_t i = threadIdx.x; i < kElements; i += NPUSIM_BLOCK) {
    const C distance = read(place_of(i)) - center;
    gap += distance;
    squares += distance * distance;
  }
  gap = fold_lanes<NPUSIM_BLOCK>(gap, Plus{}) / n;
  const C variance = fold_lanes<NPUSIM_BLOCK>(squares, Plus{}) / n - gap * gap;
  const C scale = scalar::rsqrt((variance < 0 ? C{0} : variance) + static_cast<C>(params.eps));
  for (int64_t i = threadIdx.x; i < kElements; i += NPUSIM_BLOCK) {
    const Place at = place_of(i);
    C v = (read(at) - center - gap) * scale;
    if constexpr (params.has_weight)
      v *= decode<C>(static_cast<const W*>(weight)[first + at.channel]);
    if constexpr (params.has_bias) v += decode<C>(static_cast<const W*>(bias)[first + at.channel]);
    *element(y, at, params.y_strides[1], params.y_strides[2]) =
        encode<Y>(scalar::activate<params.act>(v));
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_TENSORS) {
  npusim::norm(x, NPUSIM_VECTORS_GIVEN, y);
}
#endif
