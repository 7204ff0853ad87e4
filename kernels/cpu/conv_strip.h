// The strip: a copy, as Elements, of the part of a convolution's input that one block of outputs
// reads, channels last and with its padding filled in. For inputs that igemm.h cannot point into:
// another dtype, a channel stride other than 1 (an NCHW image), or so few channels that a run of
// one pixel is too short. Without dilation along the width, a kernel row becomes one run.
#pragma once

#include <cstring>

#include "kernels/cpu/conv_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

// Where the strip lies in the input, dimension by dimension.
struct Strip {
  int64_t begin[3];  // input position of strip position 0
  int64_t step[3];   // input positions between strip positions
  int64_t extent[3];
  int64_t channels;

  int64_t line() const { return extent[2] * channels; }
  int64_t elements() const { return extent[0] * extent[1] * line(); }
};

// Lays the strip over what `outputs` positions from `from` read along one axis, and rewrites the
// axis to positions in the strip. An axis of one tap keeps only the positions that are read.
inline void place_strip(Strip& strip, int d, Axis& axis, int64_t from, int64_t outputs) {
  if (axis.taps == 0) {
    strip.extent[d] = 0;
    return;
  }
  const bool sampled = axis.taps == 1;
  strip.begin[d] = axis.lowest() + from * axis.advance;
  strip.step[d] = sampled ? axis.advance : 1;
  strip.extent[d] =
      sampled ? outputs : axis.highest() - axis.lowest() + (outputs - 1) * axis.advance + 1;
  if (sampled) {
    axis.base[0] = -from;
    axis.advance = 1;
  } else {
    for (int64_t k = 0; k < axis.taps; ++k) axis.base[k] -= strip.begin[d];
  }
  axis.limit = strip.extent[d];
}

// Planes to pixels of C channels.
template <int C, typename X>
void interleave(const X* x, int64_t count, int64_t w_stride, int64_t c_stride, Element* to) {
  for (int64_t i = 0; i < count; ++i, x += w_stride, to += C) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) to[c] = as_element(x[c * c_stride]);
  }
}

// Elements [0, count) of one line: pixels `w_stride` apart, channels `c_stride` apart.
template <typename X>
void copy_pixels(const X* x, int64_t count, int64_t channels, int64_t w_stride, int64_t c_stride,
                 Element* to) {
  if (c_stride == 1 && w_stride == channels) {
    copy_elements(x, to, count * channels);
  } else if (c_stride == 1) {
    for (int64_t i = 0; i < count; ++i)
      copy_elements(x + i * w_stride, to + i * channels, channels);
  } else if (channels == 3) {
    w_stride == 1 ? interleave<3>(x, count, 1, c_stride, to)
                  : interleave<3>(x, count, w_stride, c_stride, to);
  } else {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < count; ++i) {
        to[i * channels + c] = as_element(x[c * c_stride + i * w_stride]);
      }
    }
  }
}

// Fills the strip from image `x` of `size`, strides as in the parameters.
template <typename X>
void fill_strip(const Strip& s, const X* x, const int64_t (&size)[3], const int64_t (&strides)[5],
                Element* to) {
  const auto inside = [](int64_t i, int64_t limit) { return i >= 0 && i < limit; };
  const int64_t step = s.step[2], width = s.extent[2];
  const int64_t head =
      std::clamp<int64_t>(s.begin[2] < 0 ? (-s.begin[2] + step - 1) / step : 0, 0, width);
  const int64_t last = size[2] - 1 - s.begin[2];
  const int64_t tail = std::clamp<int64_t>(last < 0 ? 0 : last / step + 1, head, width);
  for (int64_t i = 0; i < s.extent[0]; ++i) {
    const int64_t d = s.begin[0] + i * s.step[0];
    for (int64_t j = 0; j < s.extent[1]; ++j, to += s.line()) {
      const int64_t h = s.begin[1] + j * s.step[1];
      if (!inside(d, size[0]) || !inside(h, size[1]) || head == tail) {
        std::fill_n(to, s.line(), Element{});
        continue;
      }
      std::fill_n(to, head * s.channels, Element{});
      const X* from = x + d * strides[2] + h * strides[3] + (s.begin[2] + head * step) * strides[4];
      copy_pixels(from, tail - head, s.channels, std::min(step, size[2] - 1) * strides[4],
                  strides[1], to + head * s.channels);
      std::fill_n(to + tail * s.channels, (width - tail) * s.channels, Element{});
    }
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
