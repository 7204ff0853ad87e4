// W of int8, fp8 or int4 codes in stages of gemv_multistage.h, and their products on the tensor
// cores, for up to eight rows of x of a 16-bit type.
//
// W is the tensor core's A, 16 rows at a time, and rows of x are columns of its B, so that rows
// are as many as eight for the price of one and do not depend on each other. x becomes float16
// times a power of two that its warp finds (gemv_multistage.h). So do codes, without rounding: bits
// are put behind those of a power of two, which is then subtracted. A sum of
// bytes is multiplied by its row's scale when it ends; one of int4, at the end of each group,
// in float32, when what codes are above their zero point is taken off.
//
// A lane (g, t) has rows g and g + 8. Of bytes it takes 16 codes that follow one another, and of x
// the same ones. 32 codes of int4 lie in 16 bytes as the tensor core wants them: word t has
// elements 2t and 2t + 1 from its low bits up, and those 8, 16 and 24 after them.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/matmul/product_operands.h"
#include "kernels/cuda/quantization/code_pairs.h"
#include "kernels/cuda/quantization/quantized_layout.h"

namespace npusim {

struct StageFormat {
  using Element = uint8_t;
  using Multiplied = float16;
  static constexpr bool kScaled = kBytes, kAligned = true;  // rows lie on 16 bytes
  static constexpr float kSumScale = kBytes ? 1.0f : kNibbleScale;
  static constexpr bool kMovesRows = true;  // whether pointers to rows go along K
  static constexpr int kRowBytes = NPUSIM_ROW_BYTES, kBlockK = kBytes ? kRowBytes : 2 * kRowBytes;
  static constexpr int kLoads = static_cast<int>(kCodes / 16);
  // Groups of a block of K in a row; bytes of its scales and zero points in a stage, whole words.
  static constexpr bool kZeros = params.format == kAsymmetric;
  static constexpr int kGroupsHere = kBytes ? 0 : static_cast<int>(kBlockK / kGroupSize);
  static constexpr int kScaleBytes = kBytes ? 0 : larger(4, 2 * kGroupsHere);
  static constexpr int kZeroBytes = kZeros ? larger(4, kGroupsHere) : 0;
  static constexpr int kSideBytes = kScaleBytes + kZeroBytes;
  static constexpr int kScaleWords = larger(1, kScaleBytes / 4),
                       kZeroWords = larger(1, kZeroBytes / 4);
  static constexpr int kSwizzlePeriod = kBytes ? 2 : 8;  // of rows
  static_assert(params.m <= 8 && params.k % 8 == 0 && kIs16Bit<X>);
  static_assert(kCodes % kRowBytes == 0);  // blocks of K are whole, and so are words beside them

  // Where chunk c of row r lies: swizzled, so that lanes have no bank conflicts when they read 16
  // bytes of int8, or a word of int4.
  static unsigned chunk_at(int row, int chunk) {
    constexpr bool kWhole = kRowBytes == 128;
    const int turn = kBytes ? (kWhole ? (row & 1) << 2 : 0) : kWhole ? row & 7 : row >> 1 & 3;
    return row * kRowBytes + ((chunk ^ turn) << 4);
  }

  // What one lane copies beside the rows of a tile: the scales of row `lane`, or the zero points of
  // row `lane - 16`.
  struct Sides {
    const uint8_t* from = nullptr;
    bool exist = false;

    template <typename Rows>
    void find(const Rows& weights, int64_t row, bool exists) {
      if constexpr (!kBytes) {
        const QuantizedRow w = weights.whole_row(row);
        const bool scales = threadIdx.x % 32 < 16;
        from = scales ? reinterpret_cast<const uint8_t*>(w.scales) : w.zeros;
        exist = exists && (kZeros || scales);
      }
    }
    // The same `rows` further.
    void advance(int rows, bool exists) {
      if constexpr (!kBytes) {
        const bool scales = threadIdx.x % 32 < 16;
        from += rows * static_cast<int>(kGroups) * (scales ? 2 : 1);
        exist = exists && (kZeros || scales);
      }
    }
    // `to` is behind the stage's rows.
    template <int kRowsUsed>
    void copy(unsigned to, int block) const {
      const int lane = threadIdx.x % 32, row = lane % 16;
      if constexpr (!kBytes) {
        if (row >= kRowsUsed) return;
        if (lane < 16) {
          copy_words<kScaleBytes>(to + row * kScaleBytes, from + block * kGroupsHere * 2, exist);
        } else if constexpr (kZeros) {
          copy_words<kZeroBytes>(to + kRowsUsed * kScaleBytes + row * kZeroBytes,
                                 from + block * kGroupsHere, exist);
        }
      }
    }
    // The words that bytes lie in.
    template <int kCount>
    static void copy_words(unsigned to, const uint8_t* from, bool exist) {
      cp_async_words<kCount>(to, from - reinterpret_cast<unsigned long long>(from) % 4, exist);
    }
  };

  template <int kRowsUsed, int kXRowBytes>
  struct Sums {
    static constexpr int kHalves = kRowsUsed > 8 ? 2 : 1;
    static constexpr int kVectors = kNormed ? 2 : static_cast<int>(params.m);
    float sums[kBytes ? 2 : 1][4];
    unsigned own, x;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    unsigned first_scale[2] = {}, first_zero[2] = {};  // where a row's begin in words, in elements

    Sums(unsigned own, unsigned x_at) : own(own) {
      const int column = kBytes ? g : static_cast<int>(threadIdx.x) % 8;
      x = x_at + smaller(column, kVectors - 1) * kXRowBytes;
      x += kBytes ? t * 32 : threadIdx.x % 32 / 8 * 16;
    }
    // `low` and `high`: this lane's rows of W.
    template <typename Rows>
    void start(const Rows& weights, int64_t low, int64_t high) {
#pragma unroll
      for (int i = 0; i < (kBytes ? 8 : 4); ++i) sums[i / 4][i % 4] = 0.0f;
      if constexpr (!kBytes && (kGroupsHere < 2 || (kZeros && kGroupsHere < 4))) {
        const QuantizedRow rows[] = {weights.whole_row(low), weights.whole_row(high)};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          first_scale[half] = reinterpret_cast<unsigned long long>(rows[half].scales) / 2 % 2;
          first_zero[half] = reinterpret_cast<unsigned long long>(rows[half].zeros) % 4;
        }
      }
    }
    // Block `block` of K, whose x is this warp's i-th.
    void multiply(unsigned stage, int i, int block) {
      const unsigned x_block = x + i * (2 * kBlockK);
      if constexpr (kBytes) {
        multiply_bytes(own + stage, x_block);
      } else {
        multiply_nibbles(own + stage, x_block, block);
      }
    }
    float sum(int e) const { return kBytes ? sums[0][e] + sums[kBytes ? 1 : 0][e] : sums[0][e]; }

    void multiply_bytes(unsigned stage, unsigned x_block) {
#pragma unroll
      for (int j = 0; j < kRowBytes / 64; ++j) {
        uint4 w[2] = {};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          w[half] = load_shared(stage + chunk_at(g + 8 * half, 4 * j + t));
        }
        const uint4 b[2] = {load_shared(x_block + j * 128), load_shared(x_block + j * 128 + 16)};
        multiply_word(sums[0], w[0].x, w[1].x, b[0].x, b[0].y);
        multiply_word(sums[1], w[0].y, w[1].y, b[0].z, b[0].w);
        multiply_word(sums[0], w[0].z, w[1].z, b[1].x, b[1].y);
        multiply_word(sums[1], w[0].w, w[1].w, b[1].z, b[1].w);
      }
    }
    static void multiply_word(float (&to)[4], unsigned low, unsigned high, unsigned b0,
                              unsigned b1) {
      if constexpr (!kFloatCodes) {
        low ^= 0x80808080u;
        high ^= 0x80808080u;
      }
      const auto pair = [](unsigned word, int i) {
        return kFloatCodes ? float8_pair_as<float16>(word, i) : byte_pair(word, i);
      };
      unsigned a[2][2] = {{pair(low, 0), pair(low, 1)}};
      if constexpr (kHalves > 1) {
        a[1][0] = pair(high, 0);
        a[1][1] = pair(high, 1);
      }
      mma_16x8x16<float16>(to, a[0][0], a[1][0], a[0][1], a[1][1], b0, b1);
    }

    void multiply_nibbles(unsigned stage, unsigned x_block, int block) {
      constexpr int kChunksAGroup = static_cast<int>(kGroupSize / 32);
      constexpr unsigned kOne = 0x18001800u;  // of nibbles: 2^-9
      const unsigned scales_at = stage + kRowsUsed * kRowBytes, own_word = stage + g * kRowBytes;
      unsigned scales[2][kScaleWords], zeros[2][kZeroWords];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int row = g + 8 * half;
        load_words(scales_at + row * kScaleBytes, scales[half]);
        if constexpr (kZeros) {
          load_words(scales_at + kRowsUsed * kScaleBytes + row * kZeroBytes, zeros[half]);
        }
      }
#pragma unroll
      for (int group = 0; group < kGroupsHere; ++group) {
        float part[4] = {}, of_x[4] = {};
#pragma unroll
        for (int j = 0; j < kChunksAGroup; ++j) {
          const int chunk = group * kChunksAGroup + j;
          unsigned b[4], w[2] = {}, a[4][2] = {};
          ldmatrix(b, x_block + chunk * 64);
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            // Row g + 8 is swizzled as row g.
            w[half] = load_shared_word(own_word + word_in_row(chunk) + half * (8 * kRowBytes));
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i][half] = small_nibble_pair(w[half] >> (i / 2 * 8), i);
          }
          mma_16x8x16<float16>(part, a[0][0], a[0][1], a[1][0], a[1][1], b[0], b[1]);
          mma_16x8x16<float16>(part, a[2][0], a[2][1], a[3][0], a[3][1], b[2], b[3]);
          if constexpr (kZeros) {
            mma_16x8x16<float16>(of_x, kOne, kOne, kOne, kOne, b[0], b[1]);
            mma_16x8x16<float16>(of_x, kOne, kOne, kOne, kOne, b[2], b[3]);
          }
        }
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const float scale = scale_of(scales[half], first_scale[half], block, group);
          const float above = kZeros ? zero_of(zeros[half], first_zero[half], block, group) : 0.0f;
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            sums[0][e] += scale * (kZeros ? part[e] - above * of_x[e] : part[e]);
          }
        }
      }
    }
    unsigned word_in_row(int chunk) const {
      const int turn = kRowBytes == 128 ? g : g >> 1;
      return ((chunk ^ (turn & (kRowBytes / 16 - 1))) << 4) + t * 4;
    }
    template <int kCount>
    static void load_words(unsigned at, unsigned (&to)[kCount]) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[i] = load_shared_word(at + 4 * i);
    }
    static float scale_of(const unsigned (&words)[kScaleWords], unsigned first, int block,
                          int group) {
      if constexpr (kGroupsHere < 2) group = static_cast<int>((first + block) % 2);
      const unsigned word = words[group / 2];
      return to_float(float16{static_cast<unsigned short>(group % 2 == 0 ? word : word >> 16)});
    }
    // A zero point, less the 8 that codes are already less.
    static float zero_of(const unsigned (&words)[kZeroWords], unsigned first, int block,
                         int group) {
      if constexpr (kGroupsHere < 4) group += static_cast<int>(first + block * kGroupsHere) % 4;
      const unsigned byte = words[kGroupsHere < 4 ? 0 : group / 4] >> (group % 4 * 8) & 0xff;
      return static_cast<float>(byte) * kZeroStep - 8.0f;
    }
  };
};

}  // namespace npusim
