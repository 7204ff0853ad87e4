// Where the windows of a convolution lie: its output positions, and the input that a tap reads.
#pragma once
#include "kernels/metal/common/scalar.h"

namespace npusim {

constant constexpr int64_t kPositions =
    params.batch * params.out_size[0] * params.out_size[1] * params.out_size[2];
constant constexpr int kTaps =
    static_cast<int>(params.kernel[0] * params.kernel[1] * params.kernel[2]);
constant constexpr int64_t kPadding = kSmallest;  // no offset: strides may be negative

// One output position: batch item, depth, height, width.
struct Position {
  int64_t batch;
  int at[3];
};
inline Position position_of(int64_t place) {
  Position position;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    position.at[d] = static_cast<int>(place % params.out_size[d]);
    place /= params.out_size[d];
  }
  position.batch = place;
  return position;
}
inline int64_t y_offset(Position position) {
  int64_t offset = position.batch * params.y_strides[0];
#pragma unroll
  for (int d = 0; d < 3; ++d) offset += position.at[d] * params.y_strides[2 + d];
  return offset;
}
inline int64_t r_offset(Position position) {
  int64_t offset = position.batch * params.r_strides[0];
#pragma unroll
  for (int d = 0; d < 3; ++d) offset += position.at[d] * params.r_strides[2 + d];
  return offset;
}

// Where the input lies that a tap reads in dimension d; -1 when that is padding.
template <bool kTransposed>
inline int tapped(int d, int position, int tap) {
  const int reach = tap * static_cast<int>(params.dilation[d]);
  const int pad = static_cast<int>(params.pad[d]), stride = static_cast<int>(params.stride[d]);
  int at = position * stride - pad + reach;
  if (kTransposed) {
    const int distance = position + pad - reach;
    if (distance < 0 || distance % stride != 0) return -1;
    at = distance / stride;
  }
  return at >= 0 && at < static_cast<int>(params.in_size[d]) ? at : -1;
}

// The offset of the input that tap number `tap` reads from a position, channel 0; or kPadding.
template <bool kTransposed>
inline int64_t input_offset(Position position, int tap) {
  int64_t offset = position.batch * params.x_strides[0];
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const int taps = static_cast<int>(params.kernel[d]);
    const int at = tapped<kTransposed>(d, position.at[d], tap % taps);
    tap /= taps;
    if (at < 0) return kPadding;
    offset += at * params.x_strides[2 + d];
  }
  return offset;
}

}  // namespace npusim
