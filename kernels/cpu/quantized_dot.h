// Products of one row of a quantized weight with a few rows of x as int16 (quantized_rows.h).
//
// Decoding one token is bound by the reading of weights, so what counts is instructions a cache
// line of codes. int4 on AVX-512, 128 elements: three shifts, three masks, four dot products, one
// conversion, one arrangement of scales, one multiply-add. Zero points cost nothing there: a
// group's Σ x·(code - zero)·scale is Σ x·code·scale less zero·scale·Σ x, and the latter are summed
// for a vector of groups at a time.
#pragma once

#include "kernels/cpu/quantized_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int kDotBatch = 4;           // rows of x that share the unpacking of a code
inline constexpr int64_t kFetchAhead = 2048;  // bytes; pages end the hardware's own prefetching

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

// Vectors whose lanes add up to the products of the row with rows [row, row + R) of x.
template <int R>
inline void dot_int8(const QuantizedRow& w, const QuantizedRows& x, int64_t row, Vec* sums) {
  const int16_t* codes = x.codes + row * x.k;
  const float* scales = x.scales + row * x.group_stride;
  Vec total[R] = {};
  for (int64_t g = 0; g < x.groups; ++g) {
    IVec acc[R] = {};
    const std::byte* from = w.codes + g * kCodeBlock;
    __builtin_prefetch(from + kFetchAhead);
    __builtin_prefetch(from + kFetchAhead + 64);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kCodeBlock; i += kPairLanes) {
      const SVec code = widen_codes(from + i);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        acc[r] = dot_pairs(acc[r], code, load_pairs(codes + r * x.k + g * kCodeBlock + i));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      total[r] += __builtin_convertvector(acc[r], Vec) * scales[r * x.group_stride + g];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sums[r] = total[r] * *w.scale;
}

// Scales of x times scales of the row, by group; and what the zero points take from the sums.
template <int R, bool Zeros>
inline void multiply_scales(const QuantizedRow& w, const QuantizedRows& x, int64_t row,
                            float* products, Vec* sums) {
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sums[r] = Vec{};
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
      const int64_t at = (row + r) * x.group_stride + g;
      const Vec product = scale * load(x.scales + at), offset = load(x.offsets + at);
      store(products + r * x.group_stride + g, product);
      sums[r] -= product * (Zeros ? zero * offset : offset);
    }
  }
}

template <int R, int Group, bool Zeros>
inline void dot_int4(const QuantizedRow& w, const QuantizedRows& x, int64_t row, float* products,
                     Vec* sums) {
  constexpr int kElements = 4 * kPairLanes;  // of a vector of words
  constexpr int kLanesOfGroup = Group / 8;   // of a sum of four dot products
  multiply_scales<R, Zeros>(w, x, row, products, sums);
  const int16_t* codes = x.codes + row * x.k;
  Vec total[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) total[r] = sums[r];
  const std::byte* from = w.codes;
  for (int64_t k = 0; k < x.k; k += kElements, from += kElements / 2) {
    if (k % kCodeBlock == 0) __builtin_prefetch(from + kFetchAhead);
    const BVec words = load_words(from);
    const SVec parts[4] = {nibbles(words, 0), nibbles(words, 4), nibbles(words, 8),
                           reinterpret_cast<SVec>(words >> 12)};
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      IVec acc{};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        acc = dot_pairs(acc, parts[i], load_pairs(codes + r * x.k + k + i * kPairLanes));
      }
      total[r] += __builtin_convertvector(acc, Vec) *
                  repeat_each<kLanesOfGroup>(products + r * x.group_stride + k / Group);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sums[r] = total[r];
}

template <int R>
inline void dot_row(int32_t format, int64_t group, const QuantizedRow& w, const QuantizedRows& x,
                    int64_t row, float* products, Vec* sums) {
  const bool zeros = format == kInt4Asymmetric;
  if (format == kInt8) return dot_int8<R>(w, x, row, sums);
  const auto pick = [&]<int Group>(std::integral_constant<int, Group>) {
    if (zeros) return dot_int4<R, Group, true>(w, x, row, products, sums);
    dot_int4<R, Group, false>(w, x, row, products, sums);
  };
  if (group == 32) return pick(std::integral_constant<int, 32>{});
  if (group == 64) return pick(std::integral_constant<int, 64>{});
  pick(std::integral_constant<int, 128>{});
}

}  // namespace npusim::cpu::NPUSIM_ISA
