// GEMMs of bytes: a tile of rows of x by panels of packed weights, summed in registers over all
// of K, exact in int32. Rows of x are bytes wherever they lie, cut into runs of whole quads.
#pragma once

#include "kernels/cpu/int8_panels.h"

namespace npusim::cpu::NPUSIM_ISA {

#if defined(__AVX512F__)
constexpr int int8_tile_rows(int panels) {
  return panels >= 4 ? 6 : 8;
}
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int int8_tile_rows(int) {
  return 4;
}
#else
constexpr int int8_tile_rows(int) {
  return 2;
}
#endif

// Row r is at[r][0 … 4 * quads), at[stride + r][…), …: one run a tap.
struct Int8Rows {
  const uint8_t* const* at = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t taps = 1;
  int64_t quads = 0;  // of a run
};

struct Int8Tile {
  const uint8_t* const* at;  // of the tile's first row
  int64_t stride, taps, quads;
  const int8_t* b;  // of the tile's first panel
  int64_t panel_bytes;
  const int8_t* soon;     // what to bring near meanwhile: a row of a panel a step
  const int32_t* offset;  // of each column: what its sums begin with
  int32_t* sums;          // [rows][kSumsStride]
};

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
  const int8_t *b = tile.b, *soon = tile.soon;
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

}  // namespace npusim::cpu::NPUSIM_ISA
