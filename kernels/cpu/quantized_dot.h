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

inline constexpr int kDotBatch = 4;    // the most rows of x that share the unpacking of a code
inline constexpr int kDotColumns = 4;  // rows of a weight that share the loading of x

inline constexpr int kSumRun = kLanes / kDotColumns;

// How codes are scaled: as QuantizedLayout has it.
struct CodeFormat {
  int32_t format;
  int64_t group;
};

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

// One instruction, of which GCC makes four out of the plain conversion.
inline SVec widen_codes(const std::byte* p) {
#if defined(__AVX512BW__)
  return (SVec)_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return (SVec)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  using Bytes = VectorOf<int8_t, kPairLanes>;
  return __builtin_convertvector(*reinterpret_cast<const Bytes::unaligned*>(p), SVec);
#endif
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

// Lane i is that of the group which lane i of a vector of sums belongs to; the groups begin with
// lane `first` of v, and a vector of sums reaches over kLanes * 8 elements.
inline Vec of_groups(Vec v, [[maybe_unused]] UVec lanes, [[maybe_unused]] int shift,
                     [[maybe_unused]] int64_t first) {
  if constexpr (kLanes > 4) {
    return pick(v, reinterpret_cast<IVec>(lanes >> static_cast<uint32_t>(shift)));
  } else {
    return broadcast(v[first]);  // the smallest group has as many
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
      SVec code[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) code[c] = in_register(widen_codes(w[c] + k + i));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const SVec from = in_register(load_pairs(codes + r * x.k + k + i));
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r * C + c] = dot_pairs(acc[r * C + c], code[c], from);
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
// points take is taken from `total`: the offsets of x have the one of all codes without them.
template <int R>
inline void multiply_scales(const QuantizedRow& w, const QuantizedRows& x, int64_t row, int64_t g,
                            bool zeros, Vec* products, Vec* total) {
  Vec scale = load(w.scales + g);  // what lies beyond the row must count for nothing, NaN or not
  if (x.groups - g < kLanes) scale = first_lanes(scale, x.groups - g, 0);
  Vec zero = scale;
  if (zeros) zero *= __builtin_convertvector(load_bytes(w.zeros + g), Vec);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const int64_t at = (row + r) * x.group_stride + g;
    products[r * kDotColumns] = scale * load(x.scales + at);
    total[r * kDotColumns] -= zero * load(x.offsets + at);
  }
}

// Group and Zeros: what the code has, as constants; or a group of 0: they are read from it.
template <int R, int Group, bool Zeros>
inline void dot_int4(const CodeFormat& code, const QuantizedTile& tile) {
  constexpr int C = kDotColumns;
  constexpr int64_t kElements = 4 * kPairLanes;  // of a vector of words
  const int64_t group = Group > 0 ? Group : code.group;
  const bool zeros = Group > 0 ? Zeros : code.format == kInt4Asymmetric;
  const int shift = __builtin_ctzll(static_cast<uint64_t>(group / 8));
  constexpr int T = R == 1 ? C : R == 2 ? 2 : 1;  // rows of W that take turns: dots wait for dots
  const QuantizedRows x = tile.x;
  const int64_t row = tile.row;
  const int16_t* codes = x.codes + row * x.k;
  const QuantizedRow w[C] = {tile.w[0], tile.w[1], tile.w[2], tile.w[3]};
  const auto scale_of = [&](Vec products, UVec lanes, int64_t first)
                            __attribute__((always_inline)) {
                              if constexpr (Group > 0)
                                return repeat_each<Group / 8>(products, lanes, first);
                              return of_groups(products, lanes, shift, first);
                            };
  Vec total[R * C] = {};
  for (int64_t g = 0; g < x.groups; g += kLanes) {
    Vec products[R * C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      multiply_scales<R>(w[c], x, row, g, zeros, products + c, total + c);
    }
    const int64_t end = std::min(x.k, (g + kLanes) * group);
    UVec lanes = reinterpret_cast<UVec>(lane_index());  // of all sums of these groups
    for (int64_t k = g * group; k < end; k += kElements, lanes += kLanes) {
#pragma GCC unroll 4
      for (int c = 0; c < C; c += T) {
        BVec words[T];
        IVec acc[R * T] = {};
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          if (k % kCodeBlock == 0) {
            __builtin_prefetch(w[c + t].codes + k / 2 + tile.ahead, 0, 2);
          }
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
          total[to] +=
              __builtin_convertvector(acc[i], Vec) * scale_of(products[to], lanes, k / group - g);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum_of(tile, i) = total[i];
}

// One row, which most calls have, is computed by code of its own for every kind of int4.
template <int R>
[[gnu::noinline]] void dot_tile(const CodeFormat& code, const QuantizedTile& tile) {
  if (code.format == kInt8) return dot_int8<R>(tile);
  if constexpr (R == 1) {
    const auto pick = [&]<int Group>(std::integral_constant<int, Group>) {
      code.format == kInt4Asymmetric ? dot_int4<R, Group, true>(code, tile)
                                     : dot_int4<R, Group, false>(code, tile);
    };
    if (code.group == 32) return pick(std::integral_constant<int, 32>{});
    if (code.group == 64) return pick(std::integral_constant<int, 64>{});
    pick(std::integral_constant<int, 128>{});
  } else if constexpr (R < kDotBatch) {
    dot_int4<R, 0, false>(code, tile);
  }
}

// How many of `rows` are best computed together. Four rows of int4, with a scale a row and group,
// have more sums than registers hold beside all else.
constexpr int64_t rows_together(int32_t format, int64_t rows) {
  if (format == kInt8 || rows < kDotBatch) return std::min<int64_t>(rows, kDotBatch);
  return rows == kDotBatch ? 2 : 3;
}

// `rows` as rows_together has them.
inline void dot_tile(const CodeFormat& code, int64_t rows, const QuantizedTile& tile) {
  using Tile = void (*)(const CodeFormat&, const QuantizedTile&);
  constexpr Tile kTiles[] = {dot_tile<1>, dot_tile<2>, dot_tile<3>, dot_tile<kDotBatch>};
  kTiles[rows - 1](code, tile);
}

}  // namespace npusim::cpu::NPUSIM_ISA
