// A convolution's outputs seen as the rows of a GEMM: which taps reach an output position, where
// in the input they read, and the table of pointers that igemm.h follows.
//
// A transposed convolution is cut into phases: outputs that agree modulo the stride see the same
// taps, one input apart. A plain convolution is one phase. In a phase, output first + j*step reads,
// for each of its taps, input base + j*advance.
#pragma once

#include <algorithm>

#include "kernels/cpu/igemm.h"

namespace npusim::cpu::NPUSIM_ISA {

// One spatial dimension of one phase.
struct Axis {
  int64_t outputs = 0, first = 0, step = 1;
  int64_t advance = 1;
  int64_t limit = 0;  // input positions are [0, limit); others read as zero
  int64_t taps = 0;
  int64_t* tap = nullptr;   // [taps] index in the kernel
  int64_t* base = nullptr;  // [taps] input position at j = 0

  int64_t lowest() const { return std::min(base[0], base[taps - 1]); }
  int64_t highest() const { return std::max(base[0], base[taps - 1]); }
};

// check() of what a convolution's geometry must be for its arithmetic to stay in int64 and its
// layout to be this one. Positions outside the input are found while running.
template <typename Params>
const char* check_window(const Params& p) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const auto within = [](int64_t value, int64_t low) { return value >= low && value <= kLimit; };
  if (!within(p.batch, 0)) return "the batch is negative or too large";
  if (!within(p.in_channels, 1) || !within(p.out_channels, 1))
    return "a channel count is not sound";
  for (int d = 0; d < 3; ++d) {
    if (!within(p.in_size[d], 0) || !within(p.out_size[d], 0)) return "a size is not sound";
    if (!within(p.kernel[d], 1)) return "the kernel is empty or too large";
    if (!within(p.stride[d], 1)) return "the stride is not positive or too large";
    if (!within(p.dilation[d], 1)) return "the dilation is not positive or too large";
    if (!within(p.pad[d], -kLimit)) return "the padding is too large";
  }
  if (p.y_strides[1] != 1 || (p.residual && p.r_strides[1] != 1))
    return "the output's channels are not contiguous";
  return nullptr;
}

template <typename Params>
Region input_region(const Params& p) {
  const int64_t sizes[] = {p.batch, p.in_channels, p.in_size[0], p.in_size[1], p.in_size[2]};
  return Region().dims(sizes, p.x_strides, 5);
}

template <typename Params>
Region output_region(const Params& p, const int64_t (&strides)[5]) {
  const int64_t sizes[] = {p.batch, p.out_channels, p.out_size[0], p.out_size[1], p.out_size[2]};
  return Region().dims(sizes, strides, 5);
}

template <typename Params>
int64_t axis_phases(const Params& p, int d) {
  return p.transposed ? std::max<int64_t>(1, std::min(p.stride[d], p.out_size[d])) : 1;
}

// Fills in the axis of dimension d; `tap` and `base` hold kernel[d] values each.
template <typename Params>
Axis make_axis(const Params& p, int d, int64_t phase, int64_t* tap, int64_t* base) {
  Axis axis;
  axis.limit = p.in_size[d];
  axis.tap = tap;
  axis.base = base;
  axis.first = phase;
  axis.step = p.transposed ? p.stride[d] : 1;
  axis.advance = p.transposed ? 1 : p.stride[d];
  axis.outputs = (p.out_size[d] - phase + axis.step - 1) / axis.step;
  for (int64_t k = 0; k < p.kernel[d]; ++k) {
    const int64_t reach = k * p.dilation[d];
    const int64_t at = phase + p.pad[d] - reach;
    if (p.transposed && at % p.stride[d] != 0) continue;
    tap[axis.taps] = k;
    base[axis.taps++] = p.transposed ? at / p.stride[d] : reach - p.pad[d];
  }
  return axis;
}

// A run of output positions in row-major order: from (n, d, h, w) on, `count` of them, h and w
// staying within their ranges.
struct Positions {
  int64_t n, d, h, w;
  int64_t h_begin, h_end, w_begin, w_end, d_end;
  int64_t count;

  // Positions left in the line.
  int64_t line() const { return std::min(w_end - w, count); }
  void next_line() {
    count -= line();
    w = w_begin;
    if (++h < h_end) return;
    h = h_begin;
    if (++d < d_end) return;
    d = 0;
    ++n;
  }
};

// What the taps read: an input of channels-last pixels, in elements.
template <typename T>
struct Pixels {
  const T* data;
  int64_t n_stride, d_stride, h_stride, w_stride;
  const T* zeros;  // what lies outside
};

inline bool inside(int64_t i, int64_t limit) {
  return static_cast<uint64_t>(i) < static_cast<uint64_t>(limit);
}

// to[i] = pixel c + i * advance of a line, or zeros where that lies outside. Addresses are computed
// as integers because the ones not chosen may lie anywhere.
template <typename T>
inline void point_along_line(const T* line, const T* zeros, const Axis& w, int64_t c,
                             int64_t w_stride, int64_t count, const T** to) {
  const uint64_t step = static_cast<uint64_t>(w_stride) * sizeof(T);
  const uint64_t first = reinterpret_cast<uintptr_t>(line) + static_cast<uint64_t>(c) * step;
  const uint64_t advance = static_cast<uint64_t>(w.advance) * step;
  for (int64_t i = 0; i < count; ++i) {
    const T* pixel = reinterpret_cast<const T*>(first + static_cast<uint64_t>(i) * advance);
    to[i] = inside(c + i * w.advance, w.limit) ? pixel : zeros;
  }
}

// at[t * stride + r] = the pixel that tap t reads for the r-th position.
template <typename T>
inline void point_at_taps(const Pixels<T>& x, const Axis (&axes)[3], Positions from, const T** at,
                          int64_t stride) {
  const Axis &d = axes[0], &h = axes[1], &w = axes[2];
  for (; from.count > 0; at += from.line(), from.next_line()) {
    const T** to = at;
    for (int64_t i = 0; i < d.taps; ++i) {
      const int64_t z = d.base[i] + from.d * d.advance;
      for (int64_t j = 0; j < h.taps; ++j) {
        const int64_t y = h.base[j] + from.h * h.advance;
        const bool any = inside(z, d.limit) && inside(y, h.limit);
        const T* line =
            any ? x.data + from.n * x.n_stride + z * x.d_stride + y * x.h_stride : nullptr;
        for (int64_t k = 0; k < w.taps; ++k, to += stride) {
          if (any) {
            const int64_t c = w.base[k] + from.w * w.advance;
            point_along_line(line, x.zeros, w, c, x.w_stride, from.line(), to);
          } else {
            std::fill_n(to, from.line(), x.zeros);
          }
        }
      }
    }
  }
}

// rows[r] = offset of the r-th position's output; strides as in the parameters.
inline void offsets_of(const Axis (&axes)[3], const int64_t (&strides)[5], Positions from,
                       int64_t* rows, int64_t start) {
  const Axis &d = axes[0], &h = axes[1], &w = axes[2];
  const int64_t step = w.outputs > 1 ? w.step * strides[4] : 0;
  for (; from.count > 0; rows += from.line(), from.next_line()) {
    const int64_t first = start + from.n * strides[0] + (d.first + from.d * d.step) * strides[2] +
                          (h.first + from.h * h.step) * strides[3] +
                          (w.first + from.w * w.step) * strides[4];
    for (int64_t i = 0; i < from.line(); ++i) rows[i] = first + i * step;
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
