// W of 16-bit floats in stages of gemv_multistage.h: a row has 64 elements of K in one. x is a
// column of the tensor core's B; where it is normalised on the way, it takes two.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/matmul/linear_operands.h"

namespace npusim {

struct StageFormat {
  using Element = W;
  using Multiplied = W;
  static constexpr bool kScaled = false, kAligned = false;
  static constexpr float kSumScale = 1.0f;
  static constexpr bool kMovesRows = false;  // whether pointers to rows go along K
  static constexpr int kRowBytes = 128, kBlockK = 64, kSideBytes = 0;
  static constexpr int kSwizzlePeriod = 2;  // of rows
  static constexpr int kLoads = static_cast<int>(params.k / 8);
  static_assert(params.m == 1 && params.k % 8 == 0 && kIs16Bit<W> && kSame<X, W>);

  // Where chunk c of row r lies: swizzled, so that eight lanes that read half of two rows have no
  // bank conflicts.
  static unsigned chunk_at(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ (row & 1) << 2) << 4);
  }

  struct Sides {  // nothing lies beside the rows
    template <typename Rows>
    void find(const Rows&, int64_t, bool) {}
    void advance(int, bool) {}
    template <int kRowsUsed>
    void copy(unsigned, int) const {}
  };

  // The sums of a tile of `kRowsUsed` rows.
  template <int kRowsUsed, int kXRowBytes>
  struct Sums {
    float sums[2][4];
    unsigned halves[2], x;
    int other;

    Sums(unsigned own, unsigned x_at) {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
      // A row that the tile does not have reads one of the last two; its sums are not used.
      const int low = g < kRowsUsed ? g : kRowsUsed - 2 + g % 2;
      const int high = g + 8 < kRowsUsed ? g + 8 : kRowsUsed - 2 + g % 2;
      halves[0] = own + chunk_at(low, t);
      halves[1] = own + chunk_at(low, t + 4);
      other = kRowsUsed == 16 ? 8 * kRowBytes : (high - low) * kRowBytes;
      x = x_at + (kNormed ? (g & 1) * kXRowBytes : 0) + t * 16;
    }
    template <typename Rows>
    void start(const Rows&, int64_t, int64_t) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = 0.0f;
    }
    void multiply(unsigned stage, int i, int) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 a = load_shared(halves[j] + stage);
        const uint4 b = load_shared(halves[j] + stage + other);
        const uint4 c = load_shared(x + i * (2 * kBlockK) + j * 64);
        mma_16x8x16<W>(sums[j], a.x, b.x, a.y, b.y, c.x, c.y);
        mma_16x8x16<W>(sums[j], a.z, b.z, a.w, b.w, c.z, c.w);
      }
    }
    float sum(int e) const { return sums[0][e] + sums[1][e]; }
  };
};

}  // namespace npusim
