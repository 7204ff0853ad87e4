// Depthwise convolutions of bytes. Four taps of a column become a quad by interleaving the pixels
// that four rows of pointers show, so that one dot product multiplies and adds them all.
#pragma once

#include "kernels/cpu/int8_panels.h"

namespace npusim::cpu::NPUSIM_ISA {

// Columns that are interleaved at once: a vector's bytes where that has lanes of 16, else 16.
inline constexpr int kDepthwiseColumns = kLanes == kPanel ? kBlock : kPanel;
inline constexpr int kDepthwiseVecs = kDepthwiseColumns / kLanes;

// Some rows of a depthwise convolution, of kDepthwiseColumns columns.
struct DepthwiseTile {
  const uint8_t* const* at;  // [4 * quads][stride]: the pixels of each row
  int64_t stride, taps, quads, rows;
  int64_t column, n;      // the first column, and how many are there from it on
  const int8_t* w;        // [quads][kBlock][4], from the first column
  const int32_t* offset;  // of each column, from the first one
  int32_t* sums;          // [rows][kSumsStride]
};

// What a tile's vectors hold: a block's columns, those that are there, or, where no more than half
// of a block is, those of two rows.
enum class Filled { kWhole, kPart, kPairs };

#if defined(__AVX512F__)
// Lane i of the vectors is the quad of the column whose depthwise_place() is i; x has the pixels of
// a row, and `next` those of the row that lies beside it.
template <Filled kFilled>
inline void interleave(const uint8_t* const (&x)[kQuad], const uint8_t* const (&next)[kQuad],
                       int64_t n, IVec (&quads)[kDepthwiseVecs]) {
  __m512i row[kQuad];
  for (int j = 0; j < kQuad; ++j) {
    if constexpr (kFilled == Filled::kWhole) {
      row[j] = _mm512_loadu_si512(x[j]);
    } else if constexpr (kFilled == Filled::kPart) {
      row[j] = _mm512_maskz_loadu_epi8((__mmask64{1} << n) - 1, x[j]);
    } else {
      const __mmask64 there = (__mmask64{1} << n) - 1;
      const auto other = reinterpret_cast<uintptr_t>(next[j]) - kBlock / 2;  // lanes from there on
      row[j] = _mm512_mask_loadu_epi8(_mm512_maskz_loadu_epi8(there, x[j]), there << kBlock / 2,
                                      reinterpret_cast<const void*>(other));
    }
  }
  const __m512i low = _mm512_unpacklo_epi8(row[0], row[1]);
  const __m512i high = _mm512_unpackhi_epi8(row[0], row[1]);
  const __m512i more_low = _mm512_unpacklo_epi8(row[2], row[3]);
  const __m512i more_high = _mm512_unpackhi_epi8(row[2], row[3]);
  quads[0] = (IVec)_mm512_unpacklo_epi16(low, more_low);
  quads[1] = (IVec)_mm512_unpackhi_epi16(low, more_low);
  quads[2] = (IVec)_mm512_unpacklo_epi16(high, more_high);
  quads[3] = (IVec)_mm512_unpackhi_epi16(high, more_high);
}
// Columns in their own order: a transposition of quarters of vectors.
inline void in_order(IVec (&sums)[kDepthwiseVecs]) {
  const auto [a, b, c, d] = sums;
  const __m512i low = _mm512_maskz_shuffle_i32x4(0xFFFF, (__m512i)a, (__m512i)b, 0x44);
  const __m512i high = _mm512_maskz_shuffle_i32x4(0xFFFF, (__m512i)a, (__m512i)b, 0xEE);
  const __m512i more_low = _mm512_maskz_shuffle_i32x4(0xFFFF, (__m512i)c, (__m512i)d, 0x44);
  const __m512i more_high = _mm512_maskz_shuffle_i32x4(0xFFFF, (__m512i)c, (__m512i)d, 0xEE);
  sums[0] = (IVec)_mm512_maskz_shuffle_i32x4(0xFFFF, low, more_low, 0x88);
  sums[1] = (IVec)_mm512_maskz_shuffle_i32x4(0xFFFF, low, more_low, 0xDD);
  sums[2] = (IVec)_mm512_maskz_shuffle_i32x4(0xFFFF, high, more_high, 0x88);
  sums[3] = (IVec)_mm512_maskz_shuffle_i32x4(0xFFFF, high, more_high, 0xDD);
}
#elif !defined(__AVX2__)
template <Filled kFilled>
inline void interleave(const uint8_t* const (&x)[kQuad], const uint8_t* const (&)[kQuad], int64_t n,
                       IVec (&quads)[kDepthwiseVecs]) {
  uint8_t part[kQuad][kDepthwiseColumns] = {};
  for (int j = 0; j < kQuad; ++j) {
    const uint8_t* from = x[j];
    if constexpr (kFilled == Filled::kPart) {
      std::memcpy(part[j], from, static_cast<size_t>(n));
      from = part[j];
    }
    for (int v = 0; v < kDepthwiseVecs; ++v) {
      const IVec bytes = load_bytes(from + v * kLanes) << 8 * j;
      quads[v] = j == 0 ? bytes : quads[v] | bytes;
    }
  }
}
inline void in_order(IVec (&)[kDepthwiseVecs]) {}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
// The first `n` <= 16 bytes at p, zeros after them.
template <Filled kFilled>
inline __m128i load_pixels(const uint8_t* p, int64_t n) {
  if constexpr (kFilled == Filled::kWhole) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  } else {
    const auto bytes = [](const uint8_t* from, int64_t count) __attribute__((always_inline)) {
      uint64_t found = 0;
      if (count >= 4) {
        uint32_t first, last;  // which overlap
        std::memcpy(&first, from, sizeof first);
        std::memcpy(&last, from + count - 4, sizeof last);
        found = uint64_t{last} << 8 * (count - 4) | first;
      } else {
        for (int64_t i = 0; i < count; ++i) found |= uint64_t{from[i]} << 8 * i;
      }
      return static_cast<int64_t>(found);
    };
    return _mm_set_epi64x(n > 8 ? bytes(p + 8, n - 8) : 0, bytes(p, std::min<int64_t>(n, 8)));
  }
}

// R rows from `first` on. Two taps of a column become a pair, 16 bits each.
template <bool Signed, Filled kFilled, int R>
inline void sum_depthwise_rows(const DepthwiseTile& tile, int64_t first) {
  static_assert(kDepthwiseColumns == kPanel);
  const __m128i flip = _mm_set1_epi8(static_cast<char>(Signed ? kFlip : 0));
  IVec sums[R][kDepthwiseVecs];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kDepthwiseVecs; ++v) sums[r][v] = load(tile.offset + v * kLanes);
  }
  for (int64_t t = 0; t < tile.taps; t += 2) {
    const int8_t* w = tile.w + t / kQuad * kBlock * kQuad + quad_place(0, t % kQuad);
    const SVec low_w = in_register(widen_weights(w));
    const SVec high_w = in_register(widen_weights(w + 2 * kLanes));
    const uint8_t* const* at = tile.at + t * tile.stride + first;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      __m128i x = load_pixels<kFilled>(at[r] + tile.column, tile.n);
      __m128i next = load_pixels<kFilled>(at[tile.stride + r] + tile.column, tile.n);
      if constexpr (Signed) x = _mm_xor_si128(x, flip), next = _mm_xor_si128(next, flip);
      const auto low = (SVec)_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(x, next));
      const auto high = (SVec)_mm256_cvtepu8_epi16(_mm_unpackhi_epi8(x, next));
      sums[r][0] = dot_pairs(sums[r][0], low, low_w);
      sums[r][1] = dot_pairs(sums[r][1], high, high_w);
    }
  }
  for (int r = 0; r < R; ++r) {
    int32_t* to = tile.sums + (first + r) * kSumsStride;
    for (int v = 0; v < kDepthwiseVecs; ++v) store(to + v * kLanes, sums[r][v]);
  }
}

template <bool Signed, Filled kFilled>
void sum_depthwise(const DepthwiseTile& tile) {
  int64_t r = 0;
  for (; r + 4 <= tile.rows; r += 4) sum_depthwise_rows<Signed, kFilled, 4>(tile, r);
  for (; r < tile.rows; ++r) sum_depthwise_rows<Signed, kFilled, 1>(tile, r);
}
#else
// Sums of all rows; of pairs, one row more than there is an odd number of. Signed: pixels are
// signed bytes; what is added up is x + 128 then.
template <bool Signed, Filled kFilled>
void sum_depthwise(const DepthwiseTile& tile) {
  constexpr int kRows = kFilled == Filled::kPairs ? 2 : 1, kVecs = kDepthwiseVecs / kRows;
  const IVec flip = IVec{} + static_cast<int32_t>(Signed ? 0x80808080u : 0);
  for (int64_t r = 0; r < tile.rows; r += kRows) {
    const int64_t beside = std::min(r + kRows, tile.rows) - 1;
    IVec sums[kDepthwiseVecs] = {};
    const int8_t* w = tile.w;
    for (int64_t q = 0; q < tile.quads; ++q, w += kBlock * kQuad) {
      const uint8_t *x[kQuad], *next[kQuad];
      for (int64_t j = 0; j < kQuad; ++j) {
        const uint8_t* const* at = tile.at + (q * kQuad + j) * tile.stride;
        x[j] = at[r] + tile.column;
        next[j] = at[beside] + tile.column;
      }
      IVec quads[kDepthwiseVecs];
      interleave<kFilled>(x, next, tile.n, quads);
      for (int v = 0; v < kDepthwiseVecs; ++v) {
        const IVec row = load(reinterpret_cast<const int32_t*>(w) + v * kLanes);
        sums[v] = dot_quads(sums[v], quads[v] ^ flip, row);
      }
    }
    in_order(sums);
    for (int v = 0; v < kDepthwiseVecs; ++v) {
      const int64_t column = v % kVecs * kLanes;
      int32_t* to = tile.sums + (r + v / kVecs) * kSumsStride + column;
      store(to, wrapping_sum(sums[v], load(tile.offset + column)));
    }
  }
}
#endif

using DepthwiseFunction = void (*)(const DepthwiseTile&);

// What sums the `n` columns that are left, or the first block of them.
template <bool Signed>
inline DepthwiseFunction depthwise_function(int64_t n) {
  if (n >= kDepthwiseColumns) return sum_depthwise<Signed, Filled::kWhole>;
  if constexpr (kDepthwiseColumns == kBlock) {
    if (n <= kBlock / 2) return sum_depthwise<Signed, Filled::kPairs>;
  }
  return sum_depthwise<Signed, Filled::kPart>;
}

}  // namespace npusim::cpu::NPUSIM_ISA
