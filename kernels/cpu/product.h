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
// What wide products are cut into: the shape with the best ratio of arithmetic to loads.
#if defined(__AVX2__) && !defined(__AVX512F__)
inline constexpr int kPanelVectors = 2;
#else
inline constexpr int kPanelVectors = kTileVectors;
#endif

struct Product {
  const float* a;
  int64_t a_row, a_k;  // strides of A; one of them is 1
  const float* b = nullptr;
  int64_t b_k = 0;  // B's row stride
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t k = 0;
  bool add = false;  // C += A·B; else C = A·B
};

// R rows by V vectors. Columns: A's columns are contiguous (a_row is 1), else its rows (a_k is 1).
template <int R, int V, bool Columns>
[[gnu::noinline]] void multiply_tile(const Product& p) {
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
  const float* b = p.b;
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

using ProductTile = void (*)(const Product&);

template <int V, bool Columns, int... R>
inline ProductTile tile_of_rows(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr ProductTile kTiles[] = {multiply_tile<R + 1, V, Columns>...};
  return kTiles[rows - 1];
}

template <int V, bool Columns>
inline ProductTile product_tile(int64_t rows, int64_t vectors) {
  if constexpr (V < kTileVectors) {
    if (vectors > V) return product_tile<V + 1, Columns>(rows, vectors);
  }
  return tile_of_rows<V, Columns>(rows, std::make_integer_sequence<int, product_rows(V)>{});
}

// `rows` rows of at most kTileVectors vectors.
template <bool Columns>
void multiply_panel(Product p, int64_t rows, int64_t vectors) {
  const int64_t most = product_rows(static_cast<int>(vectors));
  const int64_t tiles = (rows + most - 1) / most;
  const int64_t taller = rows % tiles;  // tiles as equal as can be: so many have one row more
  const int64_t height = rows / tiles;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t count = height + (t < taller);
    product_tile<1, Columns>(count, vectors)(p);
    p.a += count * p.a_row;
    p.c += count * p.c_row;
  }
}

// C[rows][vectors * kLanes], rows and vectors at least 1; B and C are readable to the last lane.
inline void multiply(Product p, int64_t rows, int64_t vectors) {
  // Few rows fit beside the widest panel, and read B in longer pieces.
  const int64_t widest = rows <= product_rows(kTileVectors) ? kTileVectors : kPanelVectors;
  const int64_t panels = (vectors + widest - 1) / widest;
  for (int64_t done = 0, i = 0; i < panels; ++i) {
    const int64_t width = (vectors - done) / (panels - i);
    p.a_k == 1 ? multiply_panel<false>(p, rows, width) : multiply_panel<true>(p, rows, width);
    p.b += width * kLanes;
    p.c += width * kLanes;
    done += width;
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
