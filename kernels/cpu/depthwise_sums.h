// The sums of depthwise convolutions, several neighbouring outputs at once: column by column of any
// kernel, or, for kernels of the usual widths, reading each column of the image once.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int kOutputs = 8;  // neighbouring outputs computed together

// 32-bit words of two bfloat16 are two floats after one instruction each, where widening a vector
// takes two. So sums of even and of odd channels are vectors of their own, and weights lie alike.
inline constexpr int64_t kPairChannels = 2 * kLanes;

// Kernel positions [begin, end) that fall inside the input, and the input position of `begin`.
struct Taps {
  int64_t begin, end, at;
};
template <typename Params>
Taps valid_taps(const Params& p, int d, int64_t output) {
  const int64_t first = output * p.stride[d] - p.pad[d], step = p.dilation[d];
  const int64_t begin = first < 0 ? (-first + step - 1) / step : 0;
  const int64_t last = p.in_size[d] - 1 - first;
  const int64_t end = last < 0 ? 0 : std::min(p.kernel[d], last / step + 1);
  return {std::min(begin, end), end, first + begin * step};
}

// Everything about one line of outputs but where in it one is.
struct Line {
  Taps d, h;
  int64_t steps[3];  // elements of x from one tap to the next
  int64_t kernel_h, kernel_w, channels;
  const float* w;
};

// Vectors of channels that N outputs take at once: as many sums as hide the latency of each.
constexpr int vectors_of(int outputs) {
  return outputs >= kOutputs ? 1 : outputs > 1 ? kOutputs / outputs : 4;
}

// acc[i][…] = sum over the line's taps and columns [begin, end) of the kernel of x[i][…] * w, for V
// vectors of channels (`part` channels of one where Part).
template <int N, int V, bool Part, typename X>
inline void accumulate(const Line& line, const X* const (&x)[N], int64_t begin, int64_t end,
                       int64_t channel, int64_t part, Vec (&acc)[N][V]) {
  for (int64_t i = line.d.begin; i < line.d.end; ++i) {
    for (int64_t j = line.h.begin; j < line.h.end; ++j) {
      int64_t offset = (i - line.d.begin) * line.steps[0] + (j - line.h.begin) * line.steps[1];
      const float* w =
          line.w + ((i * line.kernel_h + j) * line.kernel_w + begin) * line.channels + channel;
      for (int64_t k = begin; k < end; ++k, offset += line.steps[2], w += line.channels) {
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          const Vec weight = Part ? load_part(w, part) : load(w + v * kLanes);
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) {
            const X* from = x[n] + offset + channel + v * kLanes;
            acc[n][v] += (Part ? load_part(from, part) : load(from)) * weight;
          }
        }
      }
    }
  }
}

// Whether a part of a vector is read by one instruction, which serves whole ones as well.
#if defined(__AVX512BW__)
inline constexpr bool kReadsParts = true;
#else
inline constexpr bool kReadsParts = false;
#endif

// Where the columns of kOutputs neighbouring outputs lie: the first is `at` elements into a line of
// x, and those before `begin` and from `end` on are not in the image.
struct Columns {
  int64_t at, begin, end;
};

// acc = the sums of kOutputs neighbours for kernels that are W columns wide and S apart: a column
// is read once for all outputs that it belongs to. Not Edge: all columns are in the image, and all
// of the `part` channels of a vector are there.
template <int W, int S, bool Edge, typename X>
inline void accumulate_row(const Line& line, const X* x, const Columns& columns, int64_t channel,
                           int64_t part, Vec (&acc)[kOutputs][1]) {
  const auto read = [part]<typename T>(const T* p) __attribute__((always_inline)) {
    return kReadsParts && Edge ? load_part(p, part) : load(p);
  };
  constexpr int kColumns = (kOutputs - 1) * S + W;
  for (int64_t i = line.d.begin; i < line.d.end; ++i) {
    for (int64_t j = line.h.begin; j < line.h.end; ++j) {
      const float* w = line.w + (i * line.kernel_h + j) * W * line.channels + channel;
      Vec weight[W];
#pragma GCC unroll 8
      for (int k = 0; k < W; ++k) weight[k] = read(w + k * line.channels);
      int64_t at = columns.at + (i - line.d.begin) * line.steps[0] +
                   (j - line.h.begin) * line.steps[1] + channel;
#pragma GCC unroll 32
      for (int c = 0; c < kColumns; ++c, at += line.steps[2]) {
        if (Edge && (c < columns.begin || c >= columns.end)) continue;
        const Vec column = read(x + at);
#pragma GCC unroll 8
        for (int n = 0; n < kOutputs; ++n) {
          if (c >= n * S && c < n * S + W) acc[n][0] += column * weight[c - n * S];
        }
      }
    }
  }
}

inline constexpr int kPairOutputs = kLanes == 16 ? 8 : 4;  // whose sums fit into registers

template <int First, int... I>
inline Vec in_order(Vec even, Vec odd, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(even, odd, (First + I / 2 + I % 2 * kLanes)...);
#else
  return __builtin_shuffle(even, odd, IVec{(First + I / 2 + I % 2 * kLanes)...});
#endif
}

// As above for kPairChannels channels: acc[n] has the first half of them, acc[N + n] the second.
template <int N>
inline void accumulate_pairs(const Line& line, const bfloat16* const* x, int64_t begin, int64_t end,
                             int64_t channel, Vec* acc) {
  Vec even[N] = {}, odd[N] = {};
  for (int64_t i = line.d.begin; i < line.d.end; ++i) {
    for (int64_t j = line.h.begin; j < line.h.end; ++j) {
      int64_t offset = (i - line.d.begin) * line.steps[0] + (j - line.h.begin) * line.steps[1];
      const float* w =
          line.w + ((i * line.kernel_h + j) * line.kernel_w + begin) * line.channels + channel;
      for (int64_t k = begin; k < end; ++k, offset += line.steps[2], w += line.channels) {
        const Vec even_w = load(w), odd_w = load(w + kLanes);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const UVec words = reinterpret_cast<UVec>(load_pairs(x[n] + offset + channel));
          even[n] += as_float(words << 16) * even_w;
          odd[n] += as_float(words & 0xFFFF0000u) * odd_w;
        }
      }
    }
  }
  constexpr auto kLane = std::make_integer_sequence<int, kLanes>{};
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    acc[n] = in_order<0>(even[n], odd[n], kLane);
    acc[N + n] = in_order<kLanes / 2>(even[n], odd[n], kLane);
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
