// Codes in shared memory as the first operand of wgmma in registers. Only for sm_90a.
//
// A lane (g, t) of a warp has rows g and g + 8 of 16, and of 16 elements along K those at 2t, 2t +
// 1, 2t + 8 and 2t + 9. In 16 bytes of int4, which are 32 elements, that is word t; of bytes it is
// halves of words t / 2 and t / 2 + 2.
#pragma once
#include "kernels/cuda/common/tma.h"
#include "kernels/cuda/quantization/code_pairs.h"
#include "kernels/cuda/quantization/code_tile.h"

namespace npusim {

// Has a fragment in its registers here, where a wgmma is to read it.
inline void fence_fragment(unsigned (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// clang-format off
#define NPUSIM_CODE_SUMS_4(i) \
  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]), \
  "+f"(c[i + 1][0]), "+f"(c[i + 1][1]), "+f"(c[i + 1][2]), "+f"(c[i + 1][3]), \
  "+f"(c[i + 2][0]), "+f"(c[i + 2][1]), "+f"(c[i + 2][2]), "+f"(c[i + 2][3]), \
  "+f"(c[i + 3][0]), "+f"(c[i + 3][1]), "+f"(c[i + 3][2]), "+f"(c[i + 3][3])
#define NPUSIM_CODE_SUMS_8(i) NPUSIM_CODE_SUMS_4(i), NPUSIM_CODE_SUMS_4(i + 4)
#define NPUSIM_CODE_SUMS_16(i) NPUSIM_CODE_SUMS_8(i), NPUSIM_CODE_SUMS_8(i + 8)
#define NPUSIM_CODE_SUMS_32(i) NPUSIM_CODE_SUMS_16(i), NPUSIM_CODE_SUMS_16(i + 16)
// clang-format on

// Starts c += a · b, of 64 rows by 8 * kBlocks columns, K 16, of fragments of a.
template <typename T, int kBlocks>
void wgmma_codes(float (&c)[kBlocks][4], const unsigned (&a)[4], unsigned long long b);

#define NPUSIM_WGMMA_CODES(width, blocks, type, kind, p, q, r, s, d)                      \
  template <>                                                                             \
  inline void wgmma_codes<type, blocks>(float (&c)[blocks][4], const unsigned (&a)[4],    \
                                        unsigned long long b) {                           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." kind "." kind      \
                 " {" NPUSIM_LIST_##width "}, {%" #p ", %" #q ", %" #r ", %" #s "}, %" #d \
                                          ", 1, 1, 1, 0;"                                 \
                 : NPUSIM_CODE_SUMS_##blocks(0)                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                   \
  }
#define NPUSIM_WGMMA_CODES_TYPES(width, blocks, p, q, r, s, d)       \
  NPUSIM_WGMMA_CODES(width, blocks, bfloat16, "bf16", p, q, r, s, d) \
  NPUSIM_WGMMA_CODES(width, blocks, float16, "f16", p, q, r, s, d)
NPUSIM_WGMMA_CODES_TYPES(64, 8, 32, 33, 34, 35, 36)
NPUSIM_WGMMA_CODES_TYPES(128, 16, 64, 65, 66, 67, 68)
NPUSIM_WGMMA_CODES_TYPES(256, 32, 128, 129, 130, 131, 132)

// Two floats rounded to a pair of T.
template <typename T>
unsigned rounded_pair(float low, float high) {
  unsigned pair;
  if constexpr (kSame<T, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// The fragments of a warp's 16 rows of a tile, a step of 64 elements of K at a time.
struct CodeFragments {
  static constexpr int kGroupsOfStep =
      kBytes ? 1 : static_cast<int>(larger<int64_t>(64 / kGroupSize, 1));
  const float16* scales[2];
  const uint8_t* zeros[2];
  bool exist[2];
  int64_t first_k;
  float scale[2][kGroupsOfStep], above[2][kGroupsOfStep];  // of the next step; zeros plus 128
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  CodeFragments(void* const* operands, const CodeTile& tile, int first_row) : first_k(tile.begin) {
    if constexpr (kBytes) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileColumn at = tile.column_of(first_row + g + half * 8);
      exist[half] = at.output < params.n;
      const QuantizedRow w = weight_row(operands, exist[half] ? at.output + at.part * params.n : 0);
      scales[half] = w.scales;
      zeros[half] = w.zeros;
    }
  }
  // Beyond K, x is zero; the scale is, too, so that nothing is infinite.
  void load_scales(int step) {
    if constexpr (kBytes) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kGroupsOfStep; ++i) {
        const int64_t group = (first_k + step * 64) / kGroupSize + i;
        const bool there = exist[half] && group < kGroups;
        scale[half][i] = there ? to_float(scales[half][group]) : 0.0f;
        above[half][i] = 136.0f;
        if constexpr (params.format == kAsymmetric)
          above[half][i] = there ? 128.0f + zeros[half][group] * kZeroStep : 128.0f;
      }
    }
  }
  // Factors of a step's elements, and what they are added to.
  struct Scales {
    float factor[2][kGroupsOfStep], less[2][kGroupsOfStep];
  };
  Scales scales_of_step() const {
    Scales of;
#pragma unroll
    for (int i = 0; i < 2 * kGroupsOfStep; ++i) {
      of.factor[i % 2][i / 2] = scale[i % 2][i / 2];
      of.less[i % 2][i / 2] = -above[i % 2][i / 2] * scale[i % 2][i / 2];
    }
    return of;
  }
  // The k-th of four fragments of step `step` of a block of 128 bytes a row. `rows`: the warp's
  // first row there, swizzled as TMA does.
  void convert(unsigned rows, int step, int k, const Scales& of, unsigned (&to)[4]) const {
    if constexpr (kBytes) {
      const unsigned chunk = ((step * 4 + k) ^ g) << 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned at = rows + (g + half * 8) * 128 + chunk + t / 2 * 4;
        to[half] = half_pair(load_shared_word(at));
        to[half + 2] = half_pair(load_shared_word(at + 8));
      }
    } else {
      const unsigned chunk = ((step * 2 + k / 2) ^ g) << 4;
      const int group = kGroupsOfStep > 1 ? k / 2 : 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned word = load_shared_word(rows + (g + half * 8) * 128 + chunk + t * 4);
        const float s = of.factor[half][group], less = of.less[half][group];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int bits = 8 * (k % 2) + 4 * i;
          to[half + i * 2] = rounded_pair<X>(element(word << (16 - bits), s, less),
                                             element(word >> bits, s, less));
        }
      }
    }
  }

 private:
  // The code behind 128, in bits 16 to 19: (128 + code) * scale, less (128 + zero) * scale, which
  // is exact, as the sum is.
  static float element(unsigned word, float scale, float less) {
    return __uint_as_float((word & 0x000f0000u) | 0x43000000u) * scale + less;
  }
  // This lane's two of four codes.
  unsigned half_pair(unsigned word) const {
    return kFloatCodes ? float8_pair_as<X>(word, t & 1) : byte_pair_as<X>(word, t & 1);
  }
};

}  // namespace npusim
