// C (+)= A·B for float matrices that lie in place: both of A's strides and B's row stride are free
// (B's columns are contiguous), so nothing needs packing to be multiplied. For operands computed or
// seen at run time (matmul, attention); weights, packed once at load, have igemm.h.
//
// A tile of C stays in registers over all of K. Each element's products are added in the order of
// K whatever the tiling.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {

// The widest tile in vectors, and the rows that fill the register file beside one row of B.
#if defined(__AVX512F__)
inline constexpr int kTileVectors = 4;
constexpr int product_rows(int vectors) {
  return vectors >= 4 ? 6 : vectors == 3 ? 8 : 12;
}
#elif defined(__AVX2__)
inline constexpr int kTileVectors = 4;
constexpr int product_rows(int vectors) {
  return vectors >= 4 ? 2 : vectors == 3 ? 4 : 6;
}
#elif defined(__aarch64__)
inline constexpr int kTileVectors = 4;
constexpr int product_rows(int vectors) {
  return vectors >= 4 ? 6 : 8;
}
#else
inline constexpr int kTileVectors = 2;
constexpr int product_rows(int vectors) {
  return vectors >= 2 ? 4 : 8;
}
#endif
// What wide GEMMs are cut into: the shape with the best ratio of arithmetic to loads.
#if defined(__AVX2__) && !defined(__AVX512F__)
inline constexpr int kPanelVectors = 2;
#else
inline constexpr int kPanelVectors = kTileVectors;
#endif

// B: how B is stored; a 16-bit float becomes float as it is loaded, for each tile of rows anew.
template <typename B>
struct Gemm {
  const float* a;
  int64_t a_row, a_k;  // strides of A; one of them is 1
  const B* b = nullptr;
  int64_t b_k = 0;  // B's row stride
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t k = 0;
  bool add = false;  // C += A·B; else C = A·B
};
using FloatGemm = Gemm<float>;

// R rows by V vectors. Columns: A's columns are contiguous (a_row is 1), else its rows (a_k is 1).
template <int R, int V, bool Columns, typename B>
[[gnu::noinline]] void multiply_tile(const Gemm<B>& p) {
  Vec acc[R][V] = {};
  if (p.add) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[r][v] = load(p.c + r * p.c_row + v * kLanes);
    }
  }
  const float* a[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) a[r] = p.a + (Columns ? r : r * p.a_row);
  const B* b = p.b;
  const int64_t a_step = p.a_k, b_step = p.b_k, depth = p.k;
  for (int64_t k = 0; k < depth; ++k, b += b_step) {
    Vec row[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) row[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec x = broadcast(Columns ? a[0][k * a_step + r] : a[r][k]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[r][v] += x * row[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(p.c + r * p.c_row + v * kLanes, acc[r][v]);
  }
}

template <typename B>
using GemmTile = void (*)(const Gemm<B>&);

template <typename B, int V, bool Columns, int... R>
inline GemmTile<B> tile_of_rows(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr GemmTile<B> kTiles[] = {multiply_tile<R + 1, V, Columns, B>...};
  return kTiles[rows - 1];
}

template <typename B, int V, bool Columns>
inline GemmTile<B> product_tile(int64_t rows, int64_t vectors) {
  if constexpr (V < kTileVectors) {
    if (vectors > V) return product_tile<B, V + 1, Columns>(rows, vectors);
  }
  return tile_of_rows<B, V, Columns>(rows, std::make_integer_sequence<int, product_rows(V)>{});
}

// Calls f(width) for the panels of so many vectors that C is cut into, from left to right.
template <typename F>
void for_each_panel(int64_t rows, int64_t vectors, F f) {
  // Few rows are one tile, however narrow: it reads B once, and the wider the longer the pieces.
  int64_t widest = kTileVectors;
  while (widest > 3 && rows > product_rows(static_cast<int>(widest))) --widest;
  if (rows > product_rows(static_cast<int>(widest))) widest = kPanelVectors;
  const int64_t panels = (vectors + widest - 1) / widest;
  for (int64_t done = 0, i = 0; i < panels; ++i) {
    const int64_t width = (vectors - done) / (panels - i);
    f(width);
    done += width;
  }
}

// Calls f(count) for the tiles of so many rows that a panel is cut into, from the top down: as
// equal as can be.
template <typename F>
void for_each_tile(int64_t rows, int64_t width, F f) {
  const int64_t most = product_rows(static_cast<int>(width));
  const int64_t tiles = (rows + most - 1) / most;
  const int64_t taller = rows % tiles;  // so many have one row more
  const int64_t height = rows / tiles;
  for (int64_t t = 0; t < tiles; ++t) f(height + (t < taller));
}

template <bool Columns, typename B>
void multiply_panel(Gemm<B> p, int64_t rows, int64_t width) {
  for_each_tile(rows, width, [&](int64_t count) {
    product_tile<B, 1, Columns>(count, width)(p);
    p.a += count * p.a_row;
    p.c += count * p.c_row;
  });
}

// C[rows][vectors * kLanes], rows and vectors at least 1; B and C are readable to the last lane.
template <typename B>
void multiply(Gemm<B> p, int64_t rows, int64_t vectors) {
  for_each_panel(rows, vectors, [&](int64_t width) {
    p.a_k == 1 ? multiply_panel<false>(p, rows, width) : multiply_panel<true>(p, rows, width);
    p.b += width * kLanes;
    p.c += width * kLanes;
  });
}

}  // namespace npusim::cpu::NPUSIM_ISA
