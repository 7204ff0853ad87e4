// C (+)= A·B over bfloat16 in pairs along K, for the instruction set that has dot products of them
// (dot_pairs of simd.h): gemm_tile.h with two steps of K at a time and sums in float. A lies in
// place, each pair of it contiguous. B is interleaved, (b[2i][n], b[2i+1][n]) for n = 0, 1, …,
// before many rows are multiplied by it; for few rows that happens as they read it.
#pragma once

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/to_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

// Lane by lane (a[i], b[i]), from lane `First` on.
template <int First, int... I>
inline BVec interleave(BVec a, BVec b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (First + I / 2 + (I & 1) * kPairLanes)...);
#else
  return __builtin_shuffle(a, b, BVec{(First + I / 2 + (I & 1) * kPairLanes)...});
#endif
}

struct Bf16Gemm {
  const bfloat16* a;
  int64_t a_row, a_k;  // strides of A's rows and pairs, in elements
  const bfloat16* b = nullptr;
  int64_t b_k = 0;  // from one pair of B's rows to the next, in elements
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t pairs = 0;  // of K
  bool add = false;   // C += A·B; else C = A·B
};

// The pair at p in all lanes.
inline BVec broadcast_pair(const bfloat16* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return reinterpret_cast<BVec>(UVec{} + pair);
}

// R rows by V vectors. Columns: the pairs of A's rows are neighbours (a_row is 2).
template <int R, int V, bool Columns>
[[gnu::noinline]] void multiply_pairs_tile(const Bf16Gemm& p) {
  Vec acc[R][V] = {};
  if (p.add) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[r][v] = load(p.c + r * p.c_row + v * kLanes);
    }
  }
  const bfloat16* a[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) a[r] = p.a + (Columns ? 2 * r : r * p.a_row);
  const bfloat16* b = p.b;
  const int64_t a_step = p.a_k, b_step = p.b_k, pairs = p.pairs;
  for (int64_t k = 0; k < pairs; ++k, b += b_step) {
    BVec row[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) row[v] = load_pairs(b + v * kPairLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const BVec x = broadcast_pair(Columns ? a[0] + k * a_step + 2 * r : a[r] + 2 * k);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], x, row[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(p.c + r * p.c_row + v * kLanes, acc[r][v]);
  }
}

using PairTile = void (*)(const Bf16Gemm&);

template <int V, bool Columns, int... R>
inline PairTile pair_tile_of_rows(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr PairTile kTiles[] = {multiply_pairs_tile<R + 1, V, Columns>...};
  return kTiles[rows - 1];
}
template <int V, bool Columns>
inline PairTile pair_tile(int64_t rows, int64_t vectors) {
  if constexpr (V < kTileVectors) {
    if (vectors > V) return pair_tile<V + 1, Columns>(rows, vectors);
  }
  return pair_tile_of_rows<V, Columns>(rows, std::make_integer_sequence<int, product_rows(V)>{});
}

// C[rows][vectors * kLanes], rows and vectors at least 1; B and C are readable to the last lane.
inline void multiply(Bf16Gemm p, int64_t rows, int64_t vectors) {
  const bool columns = p.a_row == 2;
  for_each_panel(rows, vectors, [&](int64_t width) {
    Bf16Gemm tile = p;
    for_each_tile(rows, width, [&](int64_t count) {
      columns ? pair_tile<1, true>(count, width)(tile) : pair_tile<1, false>(count, width)(tile);
      tile.a += count * p.a_row;
      tile.c += count * p.c_row;
    });
    p.b += width * kPairLanes;
    p.c += width * kLanes;
  });
}

// B from rows along N: pairs of rows interleaved, zeros in place of a last row that has no partner.
// Columns are filled with zeros to `to_columns`, a multiple of kPairLanes.
inline void interleave_rows(const StridedBlock<bfloat16>& block, bfloat16* to, int64_t to_columns) {
  constexpr auto kLane = std::make_integer_sequence<int, kPairLanes>{};
  for (int64_t r = 0; r < block.rows; r += 2, to += 2 * to_columns) {
    const bfloat16* from = block.at + r * block.row;
    for (int64_t c = 0; c < to_columns; c += kPairLanes) {
      const int64_t n = block.columns - c;
      const BVec a = load_pair_lanes(from + c, n);
      const BVec b = r + 1 < block.rows ? load_pair_lanes(from + block.row + c, n) : BVec{};
      store_pairs(to + 2 * c, interleave<0>(a, b, kLane));
      store_pairs(to + 2 * c + kPairLanes, interleave<kLanes>(a, b, kLane));
    }
  }
}

// R rows by V vectors of B as its `rows` rows lie, `b_row` apart. Prefetches as many rows further
// on into the second level, while some of b_rows are left: hardware stops at pages.
template <int R, int V>
[[gnu::noinline]] void multiply_stored_tile(const Bf16Gemm& p, int64_t rows, int64_t b_row,
                                            int64_t b_rows) {
  constexpr auto kLane = std::make_integer_sequence<int, kPairLanes>{};
  constexpr int64_t kAhead = 128;
  Vec acc[R][V] = {};
  if (p.add) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[r][v] = load(p.c + r * p.c_row + v * kLanes);
    }
  }
  const bfloat16* b = p.b;
  for (int64_t k = 0; k < rows; k += 2, b += 2 * b_row) {
    const bool paired = k + 1 < rows;
    const bfloat16* ahead = p.b + std::min(k + kAhead, b_rows - 1) * b_row;
    const bfloat16* next = p.b + std::min(k + kAhead + 1, b_rows - 1) * b_row;
    BVec row[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v += 2) {
      __builtin_prefetch(ahead + v * kLanes, 0, 2);
      __builtin_prefetch(next + v * kLanes, 0, 2);
      const BVec first = load_pairs(b + v * kLanes);
      const BVec second = paired ? load_pairs(b + b_row + v * kLanes) : BVec{};
      row[v] = interleave<0>(first, second, kLane);
      row[v + 1] = interleave<kLanes>(first, second, kLane);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const BVec x = broadcast_pair(p.a + r * p.a_row + k);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], x, row[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(p.c + r * p.c_row + v * kLanes, acc[r][v]);
  }
}

template <int R>
void multiply_stored(Bf16Gemm p, int64_t rows, int64_t b_row, int64_t b_rows, int64_t vectors) {
  constexpr int kWidest = R <= product_rows(kTileVectors) && kTileVectors >= 4 ? 4 : 2;
  for (int64_t v = 0; v < vectors;) {
    const bool wide = vectors - v >= kWidest;
    (wide ? multiply_stored_tile<R, kWidest> : multiply_stored_tile<R, 2>)(p, rows, b_row, b_rows);
    v += wide ? kWidest : 2;
    p.b = p.b + (wide ? kWidest : 2) * kLanes;
    p.c += (wide ? kWidest : 2) * kLanes;
  }
}

// C[count][b.columns], for at most kStoredRows rows of A, whose pairs are contiguous; b.columns is
// a multiple of kPairLanes. b_rows: rows of b worth prefetching.
inline constexpr int64_t kStoredRows = 8;
inline void multiply_stored(Bf16Gemm p, int64_t count, const StridedBlock<bfloat16>& b,
                            int64_t b_rows) {
  constexpr decltype(&multiply_stored<1>) kCounts[] = {
      multiply_stored<1>, multiply_stored<2>, multiply_stored<3>, multiply_stored<4>,
      multiply_stored<5>, multiply_stored<6>, multiply_stored<7>, multiply_stored<8>};
  p.b = b.at;
  kCounts[count - 1](p, b.rows, b.row, std::max(b_rows, b.rows), b.columns / kLanes);
}

}  // namespace npusim::cpu::NPUSIM_ISA
