// Attention of 16-bit operands on the tensor cores, one warp's part: 16 rows of queries by keys and
// values in shared memory, with the online softmax's running row maxima and row sums, and the
// weighted sums of values.
//
// Rows in shared memory are whole lines of eight chunks; chunk c of row r lies at c ^ (r % 8).
#pragma once
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/common/mma.h"

namespace npusim {

constexpr int kDLine = (kD + 63) / 64 * 128, kVLine = (kV + 63) / 64 * 128;  // bytes

inline unsigned at_chunk(int line, int row, int chunk) {
  return row * line + ((chunk ^ (row & 7)) << 4);
}

template <int kHalves>
struct WarpAccumulator : OnlineSoftmax<kHalves> {
  float sums[kVBlocks][4];

  WarpAccumulator() {
#pragma unroll
    for (int j = 0; j < kVBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] = 0.0f;
    }
  }

  // Turns scores into weights relative to the new row maxima, and rescales the sums to these.
  // kIsDot: scores are dot products, to be multiplied by kFactor.
  template <bool kIsDot = false, int kEights>
  void update_softmax(float (&scores)[kEights][4]) {
    float corrections[kHalves];
    this->template weigh<kIsDot>(scores, corrections);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < kVBlocks; ++j) {
        sums[j][half * 2] *= corrections[half];
        sums[j][half * 2 + 1] *= corrections[half];
      }
    }
  }

  // Adds the weighted values of the first `sixteens` times 16 keys.
  template <int kEights>
  void accumulate_values(const float (&weights)[kEights][4], unsigned values, int first_key,
                         int sixteens = kEights / 2) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kEights / 2; ++i) {
      if (i >= sixteens) break;
      const float (&low)[4] = weights[2 * i], (&high)[4] = weights[2 * i + 1];
      const unsigned a0 = pack_pair<T>(low[0], low[1]), a2 = pack_pair<T>(high[0], high[1]);
      const unsigned a1 = kHalves > 1 ? pack_pair<T>(low[2], low[3]) : 0;
      const unsigned a3 = kHalves > 1 ? pack_pair<T>(high[2], high[3]) : 0;
#pragma unroll
      for (int j = 0; j < kVBlocks / 2; ++j) {
        unsigned b[4];
        const int key = first_key + i * 16 + lane % 16;
        ldmatrix_transposed(b, values + at_chunk(kVLine, key, j * 2 + lane / 16));
        mma_16x8x16<T>(sums[2 * j], a0, a1, a2, a3, b[0], b[1]);
        mma_16x8x16<T>(sums[2 * j + 1], a0, a1, a2, a3, b[2], b[3]);
      }
    }
  }
};

using FullWarpAccumulator = WarpAccumulator<2>;

// kInRegisters: loaded once by keep(), not for every product.
template <bool kInRegisters>
struct Queries {
  unsigned base;  // of this warp's rows in shared memory
  unsigned kept[kInRegisters ? kDSteps : 1][4];

  void load(int step, unsigned (&a)[4]) const {
    const int lane = threadIdx.x % 32;
    ldmatrix(a, base + at_chunk(kDLine, lane % 16, step * 2 + lane / 16));
  }
  void keep() {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int step = 0; step < kDSteps; ++step) load(step, kept[step]);
    }
  }
  // Dot products with the first `sixteens` times 16 keys; 0 for the others.
  template <int kEights>
  void dot(unsigned keys, int first_key, float (&scores)[kEights][4],
           int sixteens = kEights / 2) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[j][e] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < kDSteps; ++step) {
      unsigned a[4];
      if constexpr (kInRegisters) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[e] = kept[step][e];
      } else {
        load(step, a);
      }
#pragma unroll
      for (int j = 0; j < kEights / 2; ++j) {
        if (j >= sixteens) break;
        unsigned b[4];
        const int key = first_key + j * 16 + lane / 16 * 8 + lane % 8;
        ldmatrix(b, keys + at_chunk(kDLine, key, step * 2 + lane / 8 % 2));
        mma_16x8x16<T>(scores[2 * j], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma_16x8x16<T>(scores[2 * j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }
};

}  // namespace npusim
