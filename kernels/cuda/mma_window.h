// Where the windows of a convolution lie.
#pragma once
#include "kernels/cuda/mma_types.h"

namespace npusim {

constexpr int64_t kPositions =
    params.batch * params.out_size[0] * params.out_size[1] * params.out_size[2];

// 32 bits where they do: divisions by constants are then short.
template <bool kFits>
struct PositionIndex {
  using type = unsigned;
};
template <>
struct PositionIndex<false> {
  using type = int64_t;
};

// One output position: batch item, depth, height, width.
struct Position {
  int64_t batch;
  int at[3];

  explicit Position(int64_t place) {
    using Index = typename PositionIndex<(kPositions <= 0x7fffffff)>::type;
    Index index = static_cast<Index>(place);
#pragma unroll
    for (int d = 2; d >= 0; --d) {
      const Index size = static_cast<Index>(params.out_size[d]);
      at[d] = static_cast<int>(index % size);
      index /= size;
    }
    batch = static_cast<int64_t>(index);
  }
  int64_t offset(const int64_t (&strides)[5]) const {
    return batch * strides[0] + at[0] * strides[2] + at[1] * strides[3] + at[2] * strides[4];
  }
};

// Where the input lies that a tap reads in dimension d; -1 when that is padding.
template <bool kTransposed>
int tapped(int d, int position, int tap) {
  const bool single = params.in_size[d] == 1 && params.out_size[d] == 1 && params.kernel[d] == 1;
  if (single && params.pad[d] == 0) return 0;
  const int reach = tap * static_cast<int>(params.dilation[d]);
  const int pad = static_cast<int>(params.pad[d]), stride = static_cast<int>(params.stride[d]);
  int at;
  if constexpr (kTransposed) {
    const int distance = position + pad - reach;
    if (distance < 0 || distance % stride != 0) return -1;
    at = distance / stride;
  } else {
    at = position * stride - pad + reach;
  }
  return at >= 0 && at < static_cast<int>(params.in_size[d]) ? at : -1;
}

constexpr int64_t kPadding = -9223372036854775807LL;  // no offset: x_strides may be negative

// The offset of the input that tap number `tap` reads from a position, channel 0; or kPadding.
template <bool kTransposed>
int64_t input_offset(const Position& position, int tap) {
  int64_t offset = position.batch * params.x_strides[0];
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const int kernel = static_cast<int>(params.kernel[d]);
    const int at = tapped<kTransposed>(d, position.at[d], tap % kernel);
    tap /= kernel;
    if (at < 0) return kPadding;
    offset += at * params.x_strides[2 + d];
  }
  return offset;
}

}  // namespace npusim
