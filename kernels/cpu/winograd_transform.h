// The one-dimensional transforms of Winograd's convolution F(m, 3) (Lavin & Gray,
// arXiv:1509.09308), built from the interpolation points by the Toom-Cook construction.
//
// F(2, 3) uses 0, 1, -1 and infinity. F(4, 3) uses 0, +-5/8, +-3/2 and infinity: all constants are
// exact in float, and the rounding error is less than half of what the usual +-1, +-2 give.
#pragma once

#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {

template <int M>
struct Winograd;

template <>
struct Winograd<2> {
  static constexpr int kPoints = 4;

  static void input(const Vec (&d)[4], Vec (&v)[4]) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[1] - d[3];
  }
  static void weight(const Vec (&g)[3], Vec (&u)[4]) {
    const Vec even = (g[0] + g[2]) * 0.5F, odd = g[1] * 0.5F;
    u[0] = g[0];
    u[1] = even + odd;
    u[2] = even - odd;
    u[3] = g[2];
  }
  static void output(const Vec (&m)[4], Vec (&y)[2]) {
    y[0] = m[0] + (m[1] + m[2]);
    y[1] = (m[1] - m[2]) - m[3];
  }
};

template <>
struct Winograd<4> {
  static constexpr int kPoints = 6;
  static constexpr float a = 0.625F, b = 1.5F;
  static constexpr float a2 = a * a, b2 = b * b, a3 = a2 * a, b3 = b2 * b, ab = a2 * b2;

  static void input(const Vec (&d)[6], Vec (&v)[6]) {
    const Vec even_a = d[4] - d[2] * b2, odd_a = (d[3] - d[1] * b2) * a;
    const Vec even_b = d[4] - d[2] * a2, odd_b = (d[3] - d[1] * a2) * b;
    v[0] = d[0] * ab - d[2] * (a2 + b2) + d[4];
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
    v[5] = d[1] * ab - d[3] * (a2 + b2) + d[5];
  }
  static void weight(const Vec (&g)[3], Vec (&u)[6]) {
    constexpr float at_a = 1 / (2 * a2 * (a2 - b2)), at_b = 1 / (2 * b2 * (b2 - a2));
    const Vec even_a = (g[0] + g[2] * a2) * at_a, odd_a = g[1] * (a * at_a);
    const Vec even_b = (g[0] + g[2] * b2) * at_b, odd_b = g[1] * (b * at_b);
    u[0] = g[0] * (1 / ab);
    u[1] = even_a + odd_a;
    u[2] = even_a - odd_a;
    u[3] = even_b + odd_b;
    u[4] = even_b - odd_b;
    u[5] = g[2];
  }
  static void output(const Vec (&m)[6], Vec (&y)[4]) {
    const Vec even_a = m[1] + m[2], odd_a = m[1] - m[2];
    const Vec even_b = m[3] + m[4], odd_b = m[3] - m[4];
    y[0] = m[0] + even_a + even_b;
    y[1] = odd_a * a + odd_b * b;
    y[2] = even_a * a2 + even_b * b2;
    y[3] = odd_a * a3 + odd_b * b3 + m[5];
  }
};

// u = G g Gᵀ for kLanes kernels side by side, g[row * 3 + column]; points lie `stride` floats
// apart.
template <int M>
[[gnu::noinline]] void transform_kernels(const Vec (&g)[9], float* u, int64_t stride) {
  constexpr int kPoints = Winograd<M>::kPoints;
  Vec rows[3][kPoints];
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    const Vec row[3] = {g[i * 3], g[i * 3 + 1], g[i * 3 + 2]};
    Winograd<M>::weight(row, rows[i]);
  }
#pragma GCC unroll 6
  for (int j = 0; j < kPoints; ++j) {
    const Vec column[3] = {rows[0][j], rows[1][j], rows[2][j]};
    Vec out[kPoints];
    Winograd<M>::weight(column, out);
#pragma GCC unroll 6
    for (int i = 0; i < kPoints; ++i) store(u + (i * kPoints + j) * stride, out[i]);
  }
}

// Calls f(std::integral_constant<int, tile>) for a checked tile size.
template <typename F>
inline auto with_tile(int32_t tile, F&& f) {
  if (tile == 2) return f(std::integral_constant<int, 2>{});
  return f(std::integral_constant<int, 4>{});
}

}  // namespace npusim::cpu::NPUSIM_ISA
