// Strips of a convolution whose groups have few channels: a thread has kOut neighbouring channels
// of kStrip positions of y that follow one another in a row. What it reads of a row of x serves all
// of them, a row of weights stays in registers meanwhile. Of a depthwise convolution (kDiagonal) a
// thread has several groups, else one.
#pragma once
#include "kernels/cuda/conv/conv_window.h"
#include "kernels/cuda/matmul/epilogue.h"

namespace npusim {

constexpr bool kDiagonal = NPUSIM_DIAGONAL != 0;
constexpr int kIn = NPUSIM_IN, kOut = NPUSIM_OUT, kStrip = NPUSIM_STRIP;
constexpr int kPairs = kDiagonal ? kOut : kIn * kOut;  // weights of a tap
constexpr int kTapsWide = static_cast<int>(params.kernel[2]);
// Of a row's taps as many at once, in equal parts, as registers hold weights for.
constexpr int kParts = static_cast<int>(ceil_div(kTapsWide, NPUSIM_TAPS));
constexpr int kPart = static_cast<int>(ceil_div(kTapsWide, kParts));
constexpr int kStep = static_cast<int>(params.dilation[2]);
constexpr int kStride = static_cast<int>(params.stride[2]);
constexpr int kReach = (kStrip - 1) * kStride + (kPart - 1) * kStep + 1;  // columns of x
constexpr int kUnrolled =
    kTapsWide * kStrip * kPairs * params.kernel[1] <= 384 ? static_cast<int>(params.kernel[1]) : 1;

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

using Sums = float[kStrip][kOut];

// Numbers of kCount neighbours.
template <int kCount, typename T>
void load_neighbours(const T* from, float* out) {
  const Pack<T, kCount> pack = load_pack<kCount>(from);
#pragma unroll
  for (int e = 0; e < kCount; ++e) out[e] = to_float(pack.at[e]);
}

// Weights as they lie: [taps][channels], or a group's columns in a panel of sixteen.
struct StripWeights {
  static constexpr int64_t kTap = kDiagonal ? params.out_channels : kIn * 16;  // to the next one

  static void load(const W* from, float (&out)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs / kOut; ++i) load_neighbours<kOut>(from + i * 16, out + i * kOut);
  }
};

// Adds a number of x, that of channel `in`, times a tap's weights.
inline void add(float value, int in, const float (&weights)[kPairs], float (&sums)[kOut]) {
  if constexpr (kDiagonal) {
    sums[in] += value * weights[in];
  } else {
#pragma unroll
    for (int out = 0; out < kOut; ++out) sums[out] += value * weights[in * kOut + out];
  }
}

// Adds what some taps of one row of x give, whose column `first` the strip reads first. kInside:
// all columns lie in x; padding is left out and not added as zeros, since weights may be infinite.
template <bool kInside, int kTapsHere>
void add_taps(const X* x, int first, const W* w, Sums& sums) {
  const int width = static_cast<int>(params.in_size[2]);
  Pack<X, kIn> loaded[kReach] = {};
#pragma unroll
  for (int c = 0; c < kReach; ++c) {
    const bool exists = kInside || static_cast<unsigned>(first + c) < static_cast<unsigned>(width);
    if (is_read(c) && exists) {
      loaded[c] = load_pack<kIn>(x + static_cast<int64_t>(first + c) * params.x_strides[4]);
    }
  }
  float weights[kTapsHere][kPairs];
#pragma unroll
  for (int tap = 0; tap < kTapsHere; ++tap) {
    StripWeights::load(w + tap * StripWeights::kTap, weights[tap]);
  }
#pragma unroll
  for (int c = 0; c < kReach; ++c) {
    const bool exists = kInside || static_cast<unsigned>(first + c) < static_cast<unsigned>(width);
    if (!is_read(c) || !exists) continue;
#pragma unroll
    for (int e = 0; e < kIn; ++e) {
      const float value = to_float(loaded[c].at[e]);
#pragma unroll
      for (int tap = 0; tap < kTapsHere; ++tap) {
#pragma unroll
        for (int at = 0; at < kStrip; ++at) {
          if (is_read(c, at, tap)) add(value, e, weights[tap], sums[at]);
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
    add_taps<kInside, kPart>(x, first + tap * kStep, w + tap * StripWeights::kTap, sums);
  }
  constexpr int kTap = (kParts - 1) * kPart;
  add_taps<kInside, kLast>(x, first + kTap * kStep, w + kTap * StripWeights::kTap, sums);
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
      w += kTapsWide * StripWeights::kTap;
    }
  }
}

// Which strip a thread has, of the packs of kOut channels: blocks of NPUSIM_GROUPS packs and
// NPUSIM_STRIPS strips of NPUSIM_ROWS rows.
struct Strip {
  int64_t pack;
  Position first;

  Strip() : pack(0), first(0) {
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
    const unsigned groups = tiles(params.out_channels, kGroups * kOut);
    pack = next(block, groups) * kGroups + next(thread, kGroups);
    const int64_t wide = next(block, tiles(params.out_size[2], kStrips * kStrip)) * kStrips;
    first.at[2] = static_cast<int>((wide + next(thread, kStrips)) * kStrip);
    const int64_t high = next(block, tiles(params.out_size[1], kRows)) * kRows;
    first.at[1] = static_cast<int>(high + thread);
    first.at[0] = static_cast<int>(next(block, static_cast<unsigned>(params.out_size[0])));
    first.batch = block;
  }
  int64_t channel() const { return pack * kOut; }
  bool exists() const {
    return channel() < params.out_channels && first.at[1] < params.out_size[1] &&
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
        load_neighbours<kOut>(from.bias + v * from.vector + channel, vectors_[v]);
      }
    }
  }
  void store(int64_t y_at, int64_t r_at, const float (&sums)[kOut]) const {
    float residual[kOut] = {};
    if constexpr (params.residual != 0) load_neighbours<kOut>(from_.residual + r_at, residual);
    Pack<Epilogue::Y, kOut> results;
#pragma unroll
    for (int e = 0; e < kOut; ++e) {
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
    bool fits = is_packed<kOut>(from.y);
    if constexpr (params.has_bias != 0) fits = fits && is_packed<kOut>(from.bias);
    if constexpr (params.residual != 0) fits = fits && is_packed<kOut>(from.residual);
    return fits;
  }

 private:
  static constexpr int kVectors = params.has_bias != 0 ? params.has_bias : 1;
  const Epilogue& from_;
  float vectors_[kVectors][kOut] = {};
};

// A strip by itself: x and w point at what it reads, `element(at, out)` is the sum of one element,
// taken where operands do not lie on whole packs.
template <typename F>
void run_strip(const Strip& strip, const X* x, const W* w, void* const* operands, F element) {
  const Epilogue epilogue(operands, 1, params.out_channels);
  const bool packed = is_packed<kIn>(x) && is_packed<kOut>(w);
  const bool fits = packed && StripEpilogue::fits(epilogue);
  Sums sums = {};
  if (fits && strip.lies_inside()) {
    add_window<true>(x, strip.first, w, sums);
  } else if (fits) {
    add_window<false>(x, strip.first, w, sums);
  }
  const int64_t channel = strip.channel();
  Position at = strip.first;
#pragma unroll
  for (int i = 0; i < kStrip; ++i, ++at.at[2]) {
    if (at.at[2] >= static_cast<int>(params.out_size[2])) break;
    const int64_t y = at.offset(params.y_strides) + channel;
    const int64_t r = params.residual ? at.offset(params.r_strides) : 0;
    if (fits) {
      StripEpilogue(epilogue, channel).store(y, r + channel, sums[i]);
      continue;
    }
    for (int out = 0; out < kOut; ++out) {
      epilogue.store(y + out, epilogue.finish(element(at, out), r, channel + out));
    }
  }
}

}  // namespace npusim
