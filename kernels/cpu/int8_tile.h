// GEMMs of bytes: a tile of rows of x by panels of packed weights, summed in registers over all
// of K, exact in int32. Rows of x are bytes wherever they lie, cut into runs of whole quads; where
// pairs of 16 bits are multiplied, they are widened and in one piece.
#pragma once

#include "kernels/cpu/int8_panels.h"

namespace npusim::cpu::NPUSIM_ISA {

#if defined(__AVX512F__)
constexpr int int8_tile_rows(int panels) {
  return panels >= 4 ? 6 : 8;
}
#elif defined(__AVX2__)
constexpr int int8_tile_rows(int) {
  return 6;
}
#elif defined(__aarch64__)
constexpr int int8_tile_rows(int) {
  return 4;
}
#else
constexpr int int8_tile_rows(int) {
  return 2;
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
using Int8Element = int16_t;
#else
using Int8Element = uint8_t;
#endif

// Row r is at[r][0 … 4 * quads), at[stride + r][…), …: one run a tap.
struct Int8Rows {
  const Int8Element* const* at = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t taps = 1;
  int64_t quads = 0;  // of a run
};

struct Int8Tile {
  const Int8Element* const* at;  // of the tile's first row
  int64_t stride, taps, quads;
  const void* b;  // of the tile's first panel: bytes, or widened ones
  int64_t panel_bytes;
  const int8_t* soon;     // what to bring near meanwhile: a row of a panel a step
  const int32_t* offset;  // of each column: what its sums begin with
  int32_t* sums;          // [rows][kSumsStride]
};

#if defined(__AVX2__) && !defined(__AVX512F__)
// Bytes as what is multiplied: unsigned ones, and signed ones more 128, as `flip` says. `n` is a
// multiple of four.
inline void widen_run(const uint8_t* from, int64_t n, uint8_t flip, int16_t* to) {
  constexpr int64_t kBytes = 16;
  const auto widen = [=](__m128i bytes) __attribute__((always_inline)) {
    const __m128i flipped = _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(flip)));
    return (SVec)_mm256_cvtepu8_epi16(flipped);
  };
  const auto widen_all = [=](int64_t i) __attribute__((always_inline)) {
    store_pairs(to + i, widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  };
  if (n >= kBytes) {
    for (int64_t i = 0; i + kBytes <= n; i += kBytes) widen_all(i);
    if (n % kBytes) widen_all(n - kBytes);
    return;
  }
  for (int64_t i = 0; i < n; i += kQuad) {
    int32_t quad;
    std::memcpy(&quad, from + i, sizeof quad);
    const SVec wide = widen(_mm_cvtsi32_si128(quad));
    std::memcpy(to + i, &wide, kQuad * sizeof *to);
  }
}

// The same of `quads` rows of quads of weights.
inline void widen_quads(const int8_t* from, int64_t quads, int16_t* to) {
  for (int64_t i = 0; i < quads * kPanel * kQuad; i += kPairLanes) {
    store_pairs(to + i, widen_weights(from + i));
  }
}
inline SVec load_weights(const int8_t* p) {
  return widen_weights(p);
}
inline SVec load_weights(const int16_t* p) {
  return load_pairs(p);
}

// One panel, of bytes or widened ones. Twelve sums, two vectors of weights, a pair of x and a
// product are all registers.
template <int R, typename Weight>
[[gnu::noinline]] void multiply_int8_pairs(const Int8Tile& tile) {
  constexpr int V = kPanelVecs;
  IVec acc[R][V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const IVec offset = load(tile.offset + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][v] = offset;
  }
  const int16_t* a[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) a[r] = tile.at[r];
  const auto* b = static_cast<const Weight*>(tile.b);
  const int8_t* soon = tile.soon;
  for (int64_t q = 0; q < tile.quads; ++q, b += kPanel * kQuad, soon += kPanel * kQuad) {
    __builtin_prefetch(soon, 0, 2);
#pragma GCC unroll 2
    for (int64_t j = 0; j < kQuad; j += 2) {
      SVec w[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) w[v] = in_register(load_weights(b + quad_place(v * kLanes, j)));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t pair;
        std::memcpy(&pair, a[r] + q * kQuad + j, sizeof pair);
        const SVec x = in_register(reinterpret_cast<SVec>(pair - IVec{}));
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], x, w[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(tile.sums + r * kSumsStride + v * kLanes, acc[r][v]);
  }
}

using Int8TileFunction = void (*)(const Int8Tile&);

template <typename Weight, int... R>
constexpr Int8TileFunction pick_int8_tile(int rows, std::integer_sequence<int, R...>) {
  constexpr Int8TileFunction functions[] = {multiply_int8_pairs<R + 1, Weight>...};
  return functions[rows - 1];
}
inline Int8TileFunction int8_pairs_function(int rows, bool widened) {
  constexpr auto kRows = std::make_integer_sequence<int, int8_tile_rows(kTilePanels)>{};
  return widened ? pick_int8_tile<int16_t>(rows, kRows) : pick_int8_tile<int8_t>(rows, kRows);
}

template <bool Signed>
inline void sum_int8_rows(const Int8Rows& a, int32_t* sums) {
  for (int64_t r = 0; r < a.count; ++r) {
    const int16_t* x = a.at[r];
    IVec lanes{};
    int64_t total = 0, i = 0;
    for (; i + kPairLanes <= a.quads * kQuad; i += kPairLanes) {
      lanes = dot_pairs(lanes, load_pairs(x + i), SVec{} + 1);
    }
    for (; i < a.quads * kQuad; ++i) total += x[i];
    for (int l = 0; l < kLanes; ++l) total += lanes[l];
    sums[r] = static_cast<int32_t>(total);
  }
}
#else
// Signed: x has signed bytes; what is added up is x + 128 then, as unsigned bytes.
template <int R, int P, bool Signed>
[[gnu::noinline]] void multiply_int8_tile(const Int8Tile& tile) {
  constexpr int V = P * kPanelVecs;
  constexpr int64_t kRow = kPanel * kQuad;
  const IVec flip = IVec{} + static_cast<int32_t>(0x80808080u);
  IVec acc[R][V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const IVec offset = load(tile.offset + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][v] = offset;
  }
  const int8_t *b = static_cast<const int8_t*>(tile.b), *soon = tile.soon;
  for (int64_t t = 0; t < tile.taps; ++t) {
    const uint8_t* a[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r] = tile.at[t * tile.stride + r];
    for (int64_t q = 0; q < tile.quads; ++q, b += kRow, soon += kRow) {
      __builtin_prefetch(soon, 0, 2);
      IVec row[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const int8_t* from = b + v / kPanelVecs * tile.panel_bytes;
        row[v] = load(reinterpret_cast<const int32_t*>(from) + v % kPanelVecs * kLanes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        IVec x = broadcast_quad(a[r] + q * kQuad);
        if constexpr (Signed) x ^= flip;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = dot_quads(acc[r][v], x, row[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(tile.sums + r * kSumsStride + v * kLanes, acc[r][v]);
  }
}

using Int8TileFunction = void (*)(const Int8Tile&);

template <int P, bool Signed, int... R>
constexpr Int8TileFunction pick_int8_tile(int rows, std::integer_sequence<int, R...>) {
  constexpr Int8TileFunction functions[] = {multiply_int8_tile<R + 1, P, Signed>...};
  return functions[rows - 1];
}

template <bool Signed>
inline Int8TileFunction int8_tile_function(int rows, int panels) {
  const auto pick = [rows]<int P>(std::integral_constant<int, P>) {
    return pick_int8_tile<P, Signed>(rows, std::make_integer_sequence<int, int8_tile_rows(P)>{});
  };
  if constexpr (kTilePanels > 1) {
    if (panels == 4) return pick(std::integral_constant<int, 4>{});
    if (panels == 3) return pick(std::integral_constant<int, 3>{});
    if (panels == 2) return pick(std::integral_constant<int, 2>{});
  }
  return pick(std::integral_constant<int, 1>{});
}

// sums[r] = Σ (x + 128, where x is signed) of a row.
template <bool Signed>
inline void sum_int8_rows(const Int8Rows& a, int32_t* sums) {
  constexpr int64_t kStep = kLanes * kQuad;
  const IVec flip = IVec{} + (Signed ? static_cast<int32_t>(0x80808080u) : 0);
  const IVec ones = IVec{} + 0x01010101;
  for (int64_t r = 0; r < a.count; ++r) {
    IVec lanes{};
    int64_t total = 0;
    for (int64_t t = 0; t < a.taps; ++t) {
      const uint8_t* x = a.at[t * a.stride + r];
      int64_t i = 0;
      for (; i + kStep <= a.quads * kQuad; i += kStep) {
        using Bytes = VectorOf<uint8_t, kStep>::unaligned;
        const auto quads = reinterpret_cast<IVec>(*reinterpret_cast<const Bytes*>(x + i));
        lanes = dot_quads(lanes, quads ^ flip, ones);
      }
      for (; i < a.quads * kQuad; ++i) total += x[i] ^ (Signed ? kFlip : 0);
    }
    for (int i = 0; i < kLanes; ++i) total += lanes[i];
    sums[r] = static_cast<int32_t>(total);
  }
}
#endif

}  // namespace npusim::cpu::NPUSIM_ISA
