// Products of many rows of x with a quantized weight: the codes of some of its rows become int16
// (of float8, floats) once, and rows of x pass over these. Each element is computed as by
// quantized_dot.h, to the bit: integers of a group in the same lanes, groups in the same order.
#pragma once

#include "kernels/cpu/quantized_dot.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kPanelColumns = 32;  // rows of a weight that are widened at once
inline constexpr int64_t kPanelDepth = 2048;  // int16 of each: whole vectors of any groups
static_assert(kPanelDepth % (kLanes * kCodeBlock) == 0);

// Rows of x in a tile: their sums, beside kDotColumns rows of W, stay in registers over a group.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kPanelTileRows = 4;
#else
inline constexpr int kPanelTileRows = 2;
#endif

// Elements of a row that are widened at once.
inline int64_t panel_depth(int32_t format) {
  return format == kFloat8 ? kPanelDepth / 2 : kPanelDepth;
}

// The bits of a float8 lie in a float's like those of a number 2^120 times as small; NaN, which is
// its row's scale as well, becomes 480.
inline void widen_float8(const std::byte* codes, int64_t depth, float* to) {
  for (int64_t i = 0; i < depth; i += kLanes) {
    const IVec bits = load_bytes(reinterpret_cast<const uint8_t*>(codes) + i);
    store(to + i, as_float((bits & 0x7F) << 20 | (bits & 0x80) << 24) * 0x1p120F);
  }
}

// Codes [k, k + depth) of a row in the order that rows of x have theirs in; both are multiples of
// kCodeBlock.
inline void widen_row(int32_t format, const QuantizedRow& w, int64_t k, int64_t depth,
                      int16_t* to) {
  if (format == kFloat8) return widen_float8(w.codes + k, depth, reinterpret_cast<float*>(to));
  if (format == kInt8) {
    for (int64_t i = 0; i < depth; i += kPairLanes) {
      store_pairs(to + i, widen_codes(w.codes + k + i));
    }
    return;
  }
  for (int64_t i = 0; i < depth; i += 4 * kPairLanes) {
    const BVec words = in_register(load_words(w.codes + (k + i) / 2));
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) store_pairs(to + i + n * kPairLanes, nibbles(words, n));
  }
}

// Elements [k, k + depth) of R rows of x from `row` on by those of rows w[0 … kDotColumns), whose
// codes from element k on are codes[…]; totals[r * totals_row + c] is a vector of sums so far.
struct PanelTile {
  const QuantizedRows& x;
  int64_t row;
  const QuantizedRow* w;
  const int16_t* codes[kDotColumns];
  int64_t k, depth;
  Vec* totals;
  int64_t totals_row;
};

template <int R>
inline void load_totals(const PanelTile& tile, Vec (&total)[R * kDotColumns]) {
#pragma GCC unroll 16
  for (int i = 0; i < R * kDotColumns; ++i) {
    const Vec* from = tile.totals + i / kDotColumns * tile.totals_row + i % kDotColumns;
    total[i] = tile.k == 0 ? Vec{} : *from;
  }
}
template <int R>
inline void store_totals(const PanelTile& tile, const Vec (&total)[R * kDotColumns]) {
#pragma GCC unroll 16
  for (int i = 0; i < R * kDotColumns; ++i) {
    tile.totals[i / kDotColumns * tile.totals_row + i % kDotColumns] = total[i];
  }
}

// acc[r * kDotColumns + c] += products of elements [i, i + Vectors * kPairLanes) of the tile.
template <int R, int Vectors>
inline void add_pairs(const PanelTile& tile, const int16_t* x, int64_t i, IVec* acc) {
#pragma GCC unroll 16
  for (int64_t v = 0; v < Vectors * kPairLanes; v += kPairLanes) {
    SVec rows[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) rows[r] = in_register(load_pairs(x + r * tile.x.k + i + v));
#pragma GCC unroll 4
    for (int c = 0; c < kDotColumns; ++c) {
      const SVec code = in_register(load_pairs(tile.codes[c] + i + v));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        acc[r * kDotColumns + c] = dot_pairs(acc[r * kDotColumns + c], code, rows[r]);
      }
    }
  }
}

template <int R>
inline void panel_int8(const PanelTile& tile) {
  constexpr int C = kDotColumns;
  const QuantizedRows& x = tile.x;
  const int16_t* codes = x.codes + tile.row * x.k + tile.k;
  const float* scales = x.scales + tile.row * x.group_stride + tile.k / kCodeBlock;
  Vec total[R * C];
  load_totals<R>(tile, total);
  for (int64_t i = 0; i < tile.depth; i += kCodeBlock) {
    IVec acc[R * C] = {};
    add_pairs<R, kCodeBlock / kPairLanes>(tile, codes, i, acc);
#pragma GCC unroll 16
    for (int j = 0; j < R * C; ++j) {
      total[j] +=
          __builtin_convertvector(acc[j], Vec) * scales[j / C * x.group_stride + i / kCodeBlock];
    }
  }
  store_totals<R>(tile, total);
}

// Of R rows, one after the other: rows of x become floats as well.
inline void panel_float8(const PanelTile& tile, int64_t rows) {
  constexpr int C = kDotColumns;
  const QuantizedRows& x = tile.x;
  for (int64_t r = 0; r < rows; ++r) {
    const int16_t* codes = x.codes + (tile.row + r) * x.k + tile.k;
    const float* scales = x.scales + (tile.row + r) * x.group_stride + tile.k / kCodeBlock;
    Vec* totals = tile.totals + r * tile.totals_row;
    for (int64_t first = 0; first < tile.depth; first += kCodeBlock) {
      Vec acc[C] = {};
      for (int64_t i = first; i < first + kCodeBlock; i += kLanes) {
        using Codes = VectorOf<int16_t, kLanes>;
        const auto narrow = *reinterpret_cast<const Codes::unaligned*>(codes + i);
        const Vec of_x = __builtin_convertvector(__builtin_convertvector(narrow, IVec), Vec);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
          acc[c] += of_x * load(reinterpret_cast<const float*>(tile.codes[c]) + i);
        }
      }
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const Vec before = tile.k + first == 0 ? Vec{} : totals[c];
        totals[c] = before + acc[c] * scales[first / kCodeBlock];
      }
    }
  }
}

// One for all groups, with zero points or not: they are of the tile's code, not of its kind.
template <int R>
inline void panel_int4(const PanelTile& tile, const CodeFormat& code) {
  constexpr int C = kDotColumns;
  constexpr int64_t kElements = 4 * kPairLanes;  // of a vector of words
  const QuantizedRows x = tile.x;
  const int16_t* codes = x.codes + tile.row * x.k + tile.k;
  const int64_t group = code.group;
  const int shift = __builtin_ctzll(static_cast<uint64_t>(group / 8));
  Vec total[R * C];
  load_totals<R>(tile, total);
  for (int64_t first = 0; first < tile.depth; first += kLanes * group) {
    Vec products[R * C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      multiply_scales<R>(tile.w[c], x, tile.row, (tile.k + first) / group,
                         code.format == kInt4Asymmetric, products + c, total + c);
    }
    const int64_t end = std::min(tile.depth, first + kLanes * group);
    UVec lanes = reinterpret_cast<UVec>(lane_index());
    for (int64_t i = first; i < end; i += kElements, lanes += kLanes) {
      IVec acc[R * C] = {};
      add_pairs<R, 4>(tile, codes, i, acc);
#pragma GCC unroll 16
      for (int j = 0; j < R * C; ++j) {
        total[j] += __builtin_convertvector(acc[j], Vec) *
                    of_groups(products[j], lanes, shift, (i - first) / group);
      }
    }
  }
  store_totals<R>(tile, total);
}

template <int R>
[[gnu::noinline]] void panel_tile(const CodeFormat& code, const PanelTile& tile) {
  code.format == kInt8 ? panel_int8<R>(tile) : panel_int4<R>(tile, code);
}

// `rows` in [1, kPanelTileRows].
template <int R = kPanelTileRows>
inline void panel_tile(const CodeFormat& code, int64_t rows, const PanelTile& tile) {
  if (code.format == kFloat8) return panel_float8(tile, rows);
  if constexpr (R > 1) {
    if (rows < R) return panel_tile<R - 1>(code, rows, tile);
  }
  panel_tile<R>(code, tile);
}

}  // namespace npusim::cpu::NPUSIM_ISA
