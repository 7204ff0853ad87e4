// Dot products of a few rows of a quantized weight with a few rows of x as int16
// (quantized_rows.h).
//
// Decoding one token is bound by the reading of weights, so what counts is instructions a cache
// line of codes. int4 on AVX-512, 128 elements: three shifts, three masks, four dot products, one
// conversion, one arrangement of scales, one multiply-add. Zero points cost nothing there: a
// group's Σ x·(code - zero)·scale is Σ x·code·scale less zero·scale·Σ x, and the latter are summed
// for a vector of groups at a time.
#pragma once

#include "kernels/cpu/quantized_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int kDotBatch = 4;    // rows of x that share the unpacking of a code
inline constexpr int kDotColumns = 4;  // rows of a weight that share the loading of x

inline constexpr int kSumRun = kLanes / kDotColumns;

// R rows of x from `row` on by rows w[0 … kDotColumns); sums[r * kLanes + c * kSumRun] is a vector
// whose lanes add up to the dot product. Meanwhile what lies `ahead` bytes after the codes is
// brought near.
struct QuantizedTile {
  const QuantizedRow* w;
  const QuantizedRows& x;
  int64_t row;
  int64_t ahead;
  Vec* sums;
};

inline Vec& sum_of(const QuantizedTile& tile, int i) {
  return tile.sums[i / kDotColumns * kLanes + i % kDotColumns * kSumRun];
}

inline SVec widen_codes(const std::byte* p) {
  using Bytes = VectorOf<int8_t, kPairLanes>;
  return __builtin_convertvector(*reinterpret_cast<const Bytes::unaligned*>(p), SVec);
}
inline BVec load_words(const std::byte* p) {
  return *reinterpret_cast<const VectorOf<uint16_t, kPairLanes>::unaligned*>(p);
}
inline SVec nibbles(BVec words, int which) {
  return reinterpret_cast<SVec>(which == 3 ? words >> 12 : words >> 4 * which & 15);
}

// Lane i is lane lanes[i] / N of v; `first` is lanes[0] / N, and each follows the one before.
template <int N>
inline Vec repeat_each(Vec v, UVec lanes, int64_t first) {
  if constexpr (N >= kLanes) {
    return broadcast(v[first]);
  } else {
    return pick(v, reinterpret_cast<IVec>(lanes / N));
  }
}

template <int R>
inline void dot_int8(const QuantizedTile& tile) {
  constexpr int C = kDotColumns;
  const QuantizedRows& x = tile.x;
  const int16_t* codes = x.codes + tile.row * x.k;
  const float* scales = x.scales + tile.row * x.group_stride;
  const std::byte* w[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) w[c] = tile.w[c].codes;
  Vec total[R * C] = {};
  for (int64_t g = 0; g < x.groups; ++g) {
    const int64_t k = g * kCodeBlock;
    IVec acc[R * C] = {};
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      __builtin_prefetch(w[c] + k + tile.ahead, 0, 2);
      __builtin_prefetch(w[c] + k + tile.ahead + 64, 0, 2);
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kCodeBlock; i += kPairLanes) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const SVec code = widen_codes(w[c] + k + i);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          acc[r * C + c] = dot_pairs(acc[r * C + c], code, load_pairs(codes + r * x.k + k + i));
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R * C; ++i) {
      total[i] += __builtin_convertvector(acc[i], Vec) * scales[i / C * x.group_stride + g];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum_of(tile, i) = total[i] * *tile.w[i % C].scale;
}

// Of kLanes groups from g on: the scales of R rows of x times those of a row of W. What the zero
// points take is taken from `total`.
template <int R, bool Zeros>
inline void multiply_scales(const QuantizedRow& w, const QuantizedRows& x, int64_t row, int64_t g,
                            Vec* products, Vec* total) {
  Vec scale = load(w.scales + g);  // what lies beyond the row must count for nothing, NaN or not
  if (x.groups - g < kLanes) scale = first_lanes(scale, x.groups - g, 0);
  Vec zero{};
  if constexpr (Zeros) {
    using Bytes = VectorOf<uint8_t, kLanes>;
    const auto bytes = *reinterpret_cast<const Bytes::unaligned*>(w.zeros + g);
    zero = __builtin_convertvector(__builtin_convertvector(bytes, IVec), Vec);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const int64_t at = (row + r) * x.group_stride + g;
    const Vec offset = load(x.offsets + at);
    products[r * kDotColumns] = scale * load(x.scales + at);
    total[r * kDotColumns] -= products[r * kDotColumns] * (Zeros ? zero * offset : offset);
  }
}

template <int R, int Group, bool Zeros>
inline void dot_int4(const QuantizedTile& tile) {
  constexpr int C = kDotColumns;
  constexpr int64_t kElements = 4 * kPairLanes;   // of a vector of words
  constexpr int kLanesOfGroup = Group / 8;        // of a sum of four dot products
  constexpr int T = R == 1 ? C : R == 2 ? 2 : 1;  // rows of W that take turns: dots wait for dots
  const QuantizedRows x = tile.x;
  const int64_t row = tile.row, ahead = tile.ahead;
  const int16_t* codes = x.codes + row * x.k;
  const QuantizedRow w[C] = {tile.w[0], tile.w[1], tile.w[2], tile.w[3]};
  Vec total[R * C] = {};
  for (int64_t g = 0; g < x.groups; g += kLanes) {
    Vec products[R * C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      multiply_scales<R, Zeros>(w[c], x, row, g, products + c, total + c);
    }
    const int64_t end = std::min(x.k, (g + kLanes) * Group);
    UVec lanes = reinterpret_cast<UVec>(lane_index());  // of all sums of these groups
    for (int64_t k = g * Group; k < end; k += kElements, lanes += kLanes) {
#pragma GCC unroll 4
      for (int c = 0; c < C; c += T) {
        BVec words[T];
        IVec acc[R * T] = {};
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          if (k % kCodeBlock == 0) __builtin_prefetch(w[c + t].codes + k / 2 + ahead, 0, 2);
          words[t] = in_register(load_words(w[c + t].codes + k / 2));
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
          for (int t = 0; t < T; ++t) {
            const SVec part = nibbles(words[t], i);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
              const SVec from = load_pairs(codes + r * x.k + k + i * kPairLanes);
              acc[r * T + t] = dot_pairs(acc[r * T + t], part, from);
            }
          }
        }
#pragma GCC unroll 16
        for (int i = 0; i < R * T; ++i) {
          const int to = i / T * C + c + i % T;
          total[to] += __builtin_convertvector(acc[i], Vec) *
                       repeat_each<kLanesOfGroup>(products[to], lanes, k / Group - g);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum_of(tile, i) = total[i];
}

template <int R>
[[gnu::noinline]] void dot_tile(int32_t format, int64_t group, const QuantizedTile& tile) {
  const bool zeros = format == kInt4Asymmetric;
  if (format == kInt8) return dot_int8<R>(tile);
  const auto pick = [&]<int Group>(std::integral_constant<int, Group>) {
    zeros ? dot_int4<R, Group, true>(tile) : dot_int4<R, Group, false>(tile);
  };
  if (group == 32) return pick(std::integral_constant<int, 32>{});
  if (group == 64) return pick(std::integral_constant<int, 64>{});
  pick(std::integral_constant<int, 128>{});
}

// `rows` in [1, kDotBatch].
inline void dot_tile(int32_t format, int64_t group, int64_t rows, const QuantizedTile& tile) {
  switch (rows) {
    case 1:
      return dot_tile<1>(format, group, tile);
    case 2:
      return dot_tile<2>(format, group, tile);
    case 3:
      return dot_tile<3>(format, group, tile);
    default:
      return dot_tile<kDotBatch>(format, group, tile);
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
