// Products of a few rows of a quantized weight with a few rows of x as int16 (quantized_rows.h).
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

// R rows of x from `row` on by rows w[0 … kDotColumns); sums[r * kDotColumns + c] is a vector whose
// lanes add up to the product. Meanwhile what lies `ahead` bytes behind the codes is brought near.
struct QuantizedTile {
  const QuantizedRow* w;
  const QuantizedRows& x;
  int64_t row;
  int64_t ahead;
  float* products;  // scratch: kDotBatch * kDotColumns rows of x.group_stride, and a vector
  Vec* sums;
};

inline SVec widen_codes(const std::byte* p) {
  using Bytes = VectorOf<int8_t, kPairLanes>;
  return __builtin_convertvector(*reinterpret_cast<const Bytes::unaligned*>(p), SVec);
}
inline BVec load_words(const std::byte* p) {
  return *reinterpret_cast<const VectorOf<uint16_t, kPairLanes>::unaligned*>(p);
}
inline SVec nibbles(BVec words, int shift) {
  return reinterpret_cast<SVec>((words >> shift) & 15);
}

// Lane i is p[i / N]; reads kLanes floats.
template <int N, int... I>
inline Vec repeat_each(const float* p, std::integer_sequence<int, I...>) {
  const Vec v = load(p);
  return shuffle(v, v, std::integer_sequence<int, (I / N)...>{});
}
template <int N>
inline Vec repeat_each(const float* p) {
  if constexpr (N >= kLanes) {
    return broadcast(*p);
  } else {
    return repeat_each<N>(p, std::make_integer_sequence<int, kLanes>{});
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
  for (int i = 0; i < R * C; ++i) tile.sums[i] = total[i] * *tile.w[i % C].scale;
}

// Scales of x times scales of row c, by group; and what the zero points take from the sums.
template <int R, bool Zeros>
inline void multiply_scales(const QuantizedTile& tile, int c) {
  const QuantizedRow& w = tile.w[c];
  const QuantizedRows& x = tile.x;
  Vec taken[R] = {};
  for (int64_t g = 0; g < x.groups; g += kLanes) {
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
      const int64_t at = (tile.row + r) * x.group_stride + g;
      const Vec product = scale * load(x.scales + at), offset = load(x.offsets + at);
      store(tile.products + (r * kDotColumns + c) * x.group_stride + g, product);
      taken[r] += product * (Zeros ? zero * offset : offset);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) tile.sums[r * kDotColumns + c] = -taken[r];
}

template <int R, int Group, bool Zeros>
inline void dot_int4(const QuantizedTile& tile) {
  constexpr int C = kDotColumns;
  constexpr int kElements = 4 * kPairLanes;  // of a vector of words
  constexpr int kLanesOfGroup = Group / 8;   // of a sum of four dot products
  const QuantizedRows& x = tile.x;
  const int16_t* codes = x.codes + tile.row * x.k;
  const std::byte* w[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    multiply_scales<R, Zeros>(tile, c);
    w[c] = tile.w[c].codes;
  }
  Vec total[R * C];
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) total[i] = tile.sums[i];
  for (int64_t k = 0; k < x.k; k += kElements) {
    const float* products = tile.products + k / Group;
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      if (k % kCodeBlock == 0) __builtin_prefetch(w[c] + k / 2 + tile.ahead, 0, 2);
      const BVec words = in_register(load_words(w[c] + k / 2));
      const SVec parts[4] = {nibbles(words, 0), nibbles(words, 4), nibbles(words, 8),
                             reinterpret_cast<SVec>(words >> 12)};
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        IVec acc{};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          acc = dot_pairs(acc, parts[i], load_pairs(codes + r * x.k + k + i * kPairLanes));
        }
        total[r * C + c] += __builtin_convertvector(acc, Vec) *
                            repeat_each<kLanesOfGroup>(products + (r * C + c) * x.group_stride);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) tile.sums[i] = total[i];
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
