// A strip of a depthwise convolution: kChannels neighbouring channels of kStrip positions of y that
// follow one another in a row. What a thread reads of a row of x serves all of them, a row of
// weights stays in registers meanwhile.
#pragma once
#include "kernels/cuda/conv/conv_window.h"
#include "kernels/cuda/matmul/epilogue.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;

constexpr int kChannels = NPUSIM_CHANNELS, kStrip = NPUSIM_STRIP;
constexpr int kTapsWide = static_cast<int>(params.kernel[2]);
// Of a row's taps as many at once, in equal parts, as registers hold weights for.
constexpr int kParts = static_cast<int>(ceil_div(kTapsWide, NPUSIM_TAPS));
constexpr int kPart = static_cast<int>(ceil_div(kTapsWide, kParts));
constexpr int kStep = static_cast<int>(params.dilation[2]);
constexpr int kStride = static_cast<int>(params.stride[2]);
constexpr int kColumns = (kStrip - 1) * kStride + (kPart - 1) * kStep + 1;
constexpr int kUnrolled = kTapsWide * kStrip * kChannels * params.kernel[1] <= 384
                              ? static_cast<int>(params.kernel[1])
                              : 1;

// Whether tap `tap` of a part reads, for position `at` of the strip, column `column`.
constexpr bool is_read(int column, int at, int tap) {
  return column == at * kStride + tap * kStep;
}
constexpr bool is_read(int column) {
  for (int at = 0; at < kStrip; ++at) {
    for (int tap = 0; tap < kPart; ++tap) {
      if (is_read(column, at, tap)) return true;
    }
  }
  return false;
}

using Sums = float[kStrip][kChannels];

// Numbers of kChannels neighbours, each of `count` packs `step` elements apart.
template <typename T>
void load_neighbours(const T* from, float (&out)[kChannels]) {
  const Pack<T, kChannels> pack = load_pack<kChannels>(from);
#pragma unroll
  for (int e = 0; e < kChannels; ++e) out[e] = to_float(pack.at[e]);
}

// Adds what some taps of one row of x give, whose column `first` the strip reads first. kInside:
// all columns lie in x; padding is left out and not added as zeros, since weights may be infinite.
template <bool kInside, int kTapsHere>
void add_taps(const X* x, int first, const W* w, Sums& sums) {
  const int width = static_cast<int>(params.in_size[2]);
  Pack<X, kChannels> loaded[kColumns] = {};
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const bool exists = kInside || static_cast<unsigned>(first + c) < static_cast<unsigned>(width);
    if (is_read(c) && exists) {
      loaded[c] = load_pack<kChannels>(x + static_cast<int64_t>(first + c) * params.x_strides[4]);
    }
  }
  float weights[kTapsHere][kChannels];
#pragma unroll
  for (int tap = 0; tap < kTapsHere; ++tap) {
    load_neighbours(w + tap * params.out_channels, weights[tap]);
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const bool exists = kInside || static_cast<unsigned>(first + c) < static_cast<unsigned>(width);
    if (!is_read(c) || !exists) continue;
#pragma unroll
    for (int e = 0; e < kChannels; ++e) {
      const float value = to_float(loaded[c].at[e]);
#pragma unroll
      for (int tap = 0; tap < kTapsHere; ++tap) {
#pragma unroll
        for (int at = 0; at < kStrip; ++at) {
          if (is_read(c, at, tap)) sums[at][e] += value * weights[tap][e];
        }
      }
    }
  }
}

template <bool kInside>
void add_row(const X* x, int first, const W* w, Sums& sums) {
  constexpr int kLast = kTapsWide - (kParts - 1) * kPart;
#pragma unroll
  for (int part = 0; part < kParts - 1; ++part) {
    const int tap = part * kPart;
    add_taps<kInside, kPart>(x, first + tap * kStep, w + tap * params.out_channels, sums);
  }
  constexpr int kTap = (kParts - 1) * kPart;
  add_taps<kInside, kLast>(x, first + kTap * kStep, w + kTap * params.out_channels, sums);
}

// The sums of a strip; x and w point at its channels, `at` is its first position.
template <bool kInside>
void add_window(const X* x, const Position& at, const W* w, Sums& sums) {
  const int first = at.at[2] * kStride - static_cast<int>(params.pad[2]);
  x += at.batch * params.x_strides[0];
  for (int d = 0; d < static_cast<int>(params.kernel[0]); ++d) {
    const int deep = tapped<false>(0, at.at[0], d);
#pragma unroll kUnrolled
    for (int h = 0; h < static_cast<int>(params.kernel[1]); ++h) {
      const int high = tapped<false>(1, at.at[1], h);
      if (deep >= 0 && high >= 0) {
        add_row<kInside>(x + deep * params.x_strides[2] + high * params.x_strides[3], first, w,
                         sums);
      }
      w += kTapsWide * params.out_channels;
    }
  }
}

// Which strip a thread has: blocks of NPUSIM_GROUPS packs of channels, NPUSIM_STRIPS strips of
// NPUSIM_ROWS rows.
struct Strip {
  int64_t channel;
  Position first;

  Strip() : channel(0), first(0) {
    constexpr int kGroups = NPUSIM_GROUPS, kStrips = NPUSIM_STRIPS, kRows = NPUSIM_ROWS;
    const auto tiles = [](int64_t size, int64_t each) {
      return static_cast<unsigned>(ceil_div(size, each));
    };
    unsigned block = blockIdx.x, thread = threadIdx.x;
    const auto next = [](unsigned& from, unsigned count) {
      const unsigned at = from % count;
      from /= count;
      return static_cast<int64_t>(at);
    };
    const unsigned groups = tiles(params.out_channels, kGroups * kChannels);
    channel = (next(block, groups) * kGroups + next(thread, kGroups)) * kChannels;
    const int64_t wide = next(block, tiles(params.out_size[2], kStrips * kStrip)) * kStrips;
    first.at[2] = static_cast<int>((wide + next(thread, kStrips)) * kStrip);
    const int64_t high = next(block, tiles(params.out_size[1], kRows)) * kRows;
    first.at[1] = static_cast<int>(high + thread);
    first.at[0] = static_cast<int>(next(block, static_cast<unsigned>(params.out_size[0])));
    first.batch = block;
  }
  bool exists() const {
    return channel < params.out_channels && first.at[1] < params.out_size[1] &&
           first.at[2] < params.out_size[2];
  }
  bool lies_inside() const {
    const int column = first.at[2] * kStride - static_cast<int>(params.pad[2]);
    constexpr int kReach = (kStrip - 1) * kStride + (kParts * kPart - 1) * kStep;
    return column >= 0 && column + kReach < static_cast<int>(params.in_size[2]);
  }
};

// What is added to sums, and how results leave.
class StripEpilogue {
 public:
  explicit StripEpilogue(const Epilogue& from, int64_t channel) : from_(from) {
    if constexpr (params.has_bias != 0) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        load_neighbours(from.bias + v * from.vector + channel, vectors_[v]);
      }
    }
  }
  void store(int64_t y_at, int64_t r_at, const float (&sums)[kChannels]) const {
    float residual[kChannels] = {};
    if constexpr (params.residual != 0) load_neighbours(from_.residual + r_at, residual);
    Pack<Epilogue::Y, kChannels> results;
#pragma unroll
    for (int e = 0; e < kChannels; ++e) {
      float v = sums[e];
      if constexpr (Epilogue::kHasFactors) v *= vectors_[1][e];
      v = Epilogue::finished(v, vectors_[0][e], residual[e]);
      if constexpr (Epilogue::kHasOffsets) v += vectors_[2][e];
      results.at[e] = encode<Epilogue::Y>(v);
    }
    store_pack(from_.y + y_at, results);
  }
  // Whether all that moves in packs lies on whole ones; strides and channels are multiples.
  static bool fits(const Epilogue& from) {
    bool fits = is_packed<kChannels>(from.y);
    if constexpr (params.has_bias != 0) fits = fits && is_packed<kChannels>(from.bias);
    if constexpr (params.residual != 0) fits = fits && is_packed<kChannels>(from.residual);
    return fits;
  }

 private:
  static constexpr int kVectors = params.has_bias != 0 ? params.has_bias : 1;
  const Epilogue& from_;
  float vectors_[kVectors][kChannels] = {};
};

}  // namespace npusim
