// The elements of a convolution's operands, and where its windows lie.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;

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

constexpr int kTaps = static_cast<int>(params.kernel[0] * params.kernel[1] * params.kernel[2]);

// Whether a window is the position's own element, so that positions lie one after another.
constexpr bool is_pointwise() {
  bool is = kTaps == 1;
  int64_t stride = params.x_strides[4];
  for (int d = 2; d >= 0; --d) {
    is = is && params.stride[d] == 1 && params.pad[d] == 0;
    is = is && (params.in_size[d] == 1 || params.x_strides[2 + d] == stride);
    stride *= params.in_size[d];
  }
  return is && (params.batch == 1 || params.x_strides[0] == stride);
}

// Whether rows of a tensor of out_size lie one after another, x_strides[4] apart.
constexpr bool is_line(const int64_t (&strides)[5]) {
  int64_t stride = strides[4];
  bool is = true;
  for (int d = 2; d >= 0; --d) {
    is = is && (params.out_size[d] == 1 || strides[2 + d] == stride);
    stride *= params.out_size[d];
  }
  return is && (params.batch == 1 || strides[0] == stride);
}
template <bool kIsLine>
int64_t offset_at(int64_t place, const int64_t (&strides)[5]) {
  return kIsLine ? place * strides[4] : Position(place).offset(strides);
}

// A window of a convolution that is not transposed: where its first tap lies, inside the input or
// not, and which taps lie inside. Up to 24 of them have a bit each, with 8 more for what a block of
// K has past the last one; of more taps each place along each dimension has one.
struct Window {
  int first;
  unsigned inside;
};
constexpr bool kMarksTaps = kTaps <= 24;
constexpr bool kHasWindows =
    params.x_strides[0] * params.batch < 0x7fffffff &&
    (kMarksTaps || params.kernel[0] + params.kernel[1] + params.kernel[2] <= 32);

// Steps of the windows in each dimension, and how far before the input the first begins.
struct WindowSteps {
  int stride[3], pad[3];
  WindowSteps() {
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      stride[d] = static_cast<int>(params.stride[d]);
      pad[d] = static_cast<int>(params.pad[d]);
    }
  }
};

inline Window window_at(int64_t place, const WindowSteps& steps = WindowSteps()) {
  if (place >= kPositions) return {0, 0};
  if constexpr (is_pointwise()) {
    return {static_cast<int>(place * params.x_strides[4]), 1};
  }
  const Position position(place);
  Window window{static_cast<int>(position.batch * params.x_strides[0]), kMarksTaps};
  int taps = kMarksTaps ? 1 : 0;  // in the bits so far
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const int kernel = static_cast<int>(params.kernel[d]);
    const int step = static_cast<int>(params.dilation[d]), in = static_cast<int>(params.in_size[d]);
    const int at = position.at[d] * steps.stride[d] - steps.pad[d];
    window.first += at * static_cast<int>(params.x_strides[2 + d]);
    unsigned inside = 0;
#pragma unroll
    for (int tap = 0; tap < kernel; ++tap) {
      const int tapped = at + tap * step;
      if (tapped < 0 || tapped >= in) continue;
      inside |= kMarksTaps ? window.inside << (tap * taps) : 1u << (taps + tap);
    }
    window.inside = kMarksTaps ? inside : window.inside | inside;
    taps = kMarksTaps ? taps * kernel : taps + kernel;
  }
  return window;
}

// Whether a tap of a window lies inside; those past the last one do not.
inline bool has_tap(const Window& window, int tap) {
  if constexpr (kMarksTaps) return window.inside >> tap & 1;
  if (tap >= kTaps) return false;
  unsigned inside = window.inside, found = 1;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const int kernel = static_cast<int>(params.kernel[d]);
    found &= inside >> (tap % kernel);
    inside >>= kernel - 1;  // not by 32, which a single dimension may have
    inside >>= 1;
    tap /= kernel;
  }
  return found;
}

// How far a tap lies from the first one.
inline int tap_offset(int tap) {
  int offset = 0;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const int kernel = static_cast<int>(params.kernel[d]);
    offset += tap % kernel * static_cast<int>(params.dilation[d] * params.x_strides[2 + d]);
    tap /= kernel;
  }
  return offset;
}

}  // namespace npusim
