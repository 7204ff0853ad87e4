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

// Has fragments in their registers here, where a wgmma is to read them.
template <int kCount>
void fence_fragments(unsigned (&a)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount * 4; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// Starts c += a · b, or c = a · b, of 64 rows by 8 * kBlocks columns, K 16, of fragments of a.
template <typename T, int kBlocks>
void wgmma_codes(float (&c)[kBlocks][4], const unsigned (&a)[4], unsigned long long b);
template <typename T, int kBlocks>
void wgmma_codes_from_zero(float (&c)[kBlocks][4], const unsigned (&a)[4], unsigned long long b);

#define NPUSIM_WGMMA_CODES(width, blocks, type, kind, p, q, r, s, d)                             \
  template <>                                                                                    \
  inline void wgmma_codes<type, blocks>(float (&c)[blocks][4], const unsigned (&a)[4],           \
                                        unsigned long long b) {                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." kind "." kind             \
                 " {" NPUSIM_LIST_##width "}, {%" #p ", %" #q ", %" #r ", %" #s "}, %" #d        \
                                          ", 1, 1, 1, 0;"                                        \
                 : NPUSIM_SUMS_##blocks("+f", 0)                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                          \
  }                                                                                              \
  template <>                                                                                    \
  inline void wgmma_codes_from_zero<type, blocks>(float (&c)[blocks][4], const unsigned (&a)[4], \
                                                  unsigned long long b) {                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." kind "." kind             \
                 " {" NPUSIM_LIST_##width "}, {%" #p ", %" #q ", %" #r ", %" #s "}, %" #d        \
                                          ", 0, 1, 1, 0;"                                        \
                 : NPUSIM_SUMS_##blocks("+f", 0)                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                          \
  }
#define NPUSIM_WGMMA_CODES_TYPES(width, blocks, p, q, r, s, d)       \
  NPUSIM_WGMMA_CODES(width, blocks, bfloat16, "bf16", p, q, r, s, d) \
  NPUSIM_WGMMA_CODES(width, blocks, float16, "f16", p, q, r, s, d)
NPUSIM_WGMMA_CODES_TYPES(8, 1, 4, 5, 6, 7, 8)
NPUSIM_WGMMA_CODES_TYPES(16, 2, 8, 9, 10, 11, 12)
NPUSIM_WGMMA_CODES_TYPES(32, 4, 16, 17, 18, 19, 20)
NPUSIM_WGMMA_CODES_TYPES(64, 8, 32, 33, 34, 35, 36)
NPUSIM_WGMMA_CODES_TYPES(96, 12, 48, 49, 50, 51, 52)
NPUSIM_WGMMA_CODES_TYPES(128, 16, 64, 65, 66, 67, 68)
NPUSIM_WGMMA_CODES_TYPES(192, 24, 96, 97, 98, 99, 100)
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

// Scales and zero points of a warp's 16 rows, those of a block of 256 elements of int4 at a time.
struct CodeSides {
  static constexpr bool kZeros = params.format == kAsymmetric;
  static constexpr int kGroupsOfBlock = kBytes ? 1 : larger(1, 256 / static_cast<int>(kGroupSize));
  // Whether all blocks are whole, and so are words.
  static constexpr bool kWhole = kGroups % kGroupsOfBlock == 0;
  static constexpr int kScaleWords = larger(kGroupsOfBlock / 2, 1);
  static constexpr int kZeroWords = larger(kGroupsOfBlock / 4, 1);
  struct Words {
    unsigned scales[2][kScaleWords], zeros[2][kZeroWords];
  };
  const float16* scales[2];
  const uint8_t* zeros[2];
  bool exist[2];
  int next;  // group

  CodeSides(void* const* operands, const CodeTile& tile, int first_row) {
    if constexpr (kBytes) return;
    next = static_cast<int>(tile.begin / kGroupSize);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int lane = static_cast<int>(threadIdx.x % 32);
      const TileColumn at = tile.column_of(first_row + lane / 4 + half * 8);
      exist[half] = at.output < params.n;
      const QuantizedRow w = weight_row(operands, exist[half] ? at.output + at.part * params.n : 0);
      scales[half] = w.scales;
      zeros[half] = w.zeros;
    }
  }
  // Of the next block; nothing beyond K or W is read, where x is zero or nobody asks for y.
  Words load() {
    Words to = {};
    if constexpr (kBytes) return to;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kWhole) {
        if (next < kGroups) {
          load_whole<kScaleWords * 4>(scales[half] + next, kGroupsOfBlock * 2, to.scales[half]);
          if constexpr (kZeros)
            load_whole<kZeroWords * 4>(zeros[half] + next, kGroupsOfBlock, to.zeros[half]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kGroupsOfBlock; ++i) {
          if (next + i >= kGroups) continue;
          to.scales[half][i / 2] |= static_cast<unsigned>(scales[half][next + i].bits)
                                    << (i % 2 * 16);
          if constexpr (kZeros)
            to.zeros[half][i / 4] |= static_cast<unsigned>(zeros[half][next + i]) << (i % 4 * 8);
        }
      }
    }
    next += kGroupsOfBlock;
    return to;
  }
  template <int kSize, int kCount>
  static void load_whole(const void* from, int bytes, unsigned (&to)[kCount]) {
    if constexpr (kSize == 16) {
      const uint4 v = *static_cast<const uint4*>(from);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if constexpr (kSize == 8) {
      const uint2 v = *static_cast<const uint2*>(from);
      to[0] = v.x, to[1] = v.y;
    } else if (bytes == 4) {
      to[0] = *static_cast<const unsigned*>(from);
    } else {
      to[0] = *static_cast<const unsigned short*>(from);
    }
  }
  static float scale(const Words& words, int half, int group) {
    const unsigned word = words.scales[half][group / 2];
    return to_float(float16{static_cast<unsigned short>(group % 2 == 0 ? word : word >> 16)});
  }
  static unsigned zero(const Words& words, int half, int group) {  // in sixteenths
    return kZeros ? words.zeros[half][group / 4] >> (group % 4 * 8) & 0xff : 128;
  }
};

// The fragments of a warp's 16 rows of a block of 128 bytes a row, swizzled as TMA does.
struct CodeFragments {
  static constexpr bool kShort = kSame<X, bfloat16>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  unsigned at[4];  // of this lane in the block's first rows: of k-th 16 bytes of 64

  CodeFragments() {
#pragma unroll
    for (int k = 0; k < 4; ++k) at[k] = g * 128 + ((k ^ g) << 4) + (kBytes ? t / 2 * 4 : t * 4);
  }
  // Of bytes: those of step `step` of 64 elements. `rows`: the warp's first row.
  void bytes(unsigned rows, int step, unsigned (&to)[4][4]) const {
    unsigned words[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned from = rows + (at[k] ^ (step << 6));
#pragma unroll
      for (int i = 0; i < 4; ++i) words[k][i] = load_shared_word(from + i % 2 * 1024 + i / 2 * 8);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const unsigned word = words[i / 4][i % 4];
      to[i / 4][i % 4] = kFloatCodes ? float8_pair_as<X>(word, t & 1)
                                     : small_byte_pair<X>(word ^ 0x80808080u, t & 1);
    }
  }
  // Of int4: codes less zero points of the 32 elements of chunk `chunk`, small.
  void nibbles(unsigned rows, int chunk, const unsigned (&less)[2], unsigned (&to)[4],
               unsigned (&more)[4]) const {
    const unsigned from = rows + (at[chunk % 4] ^ (chunk / 4 << 6));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned word = load_shared_word(from + half * 1024), high = word >> 8;
      to[half] = small_nibble_pair_as<X>(word, 0, less[half]);
      to[half + 2] = small_nibble_pair_as<X>(word, 1, less[half]);
      more[half] = small_nibble_pair_as<X>(high, 2, less[half]);
      more[half + 2] = small_nibble_pair_as<X>(high, 3, less[half]);
    }
  }
  // Of int4: elements rounded to X.
  void elements(unsigned rows, int chunk, const float (&scale)[2], const float (&less)[2],
                unsigned (&to)[4], unsigned (&more)[4]) const {
    const unsigned from = rows + (at[chunk % 4] ^ (chunk / 4 << 6));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned word = load_shared_word(from + half * 1024);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int bits = 4 * i;
        const unsigned pair = rounded_pair<X>(element(word << (16 - bits), scale[half], less[half]),
                                              element(word >> bits, scale[half], less[half]));
        (i < 2 ? to : more)[half + i % 2 * 2] = pair;
      }
    }
  }

 private:
  // The code behind 128, in bits 16 to 19: (128 + code) * scale, less (128 + zero) * scale, which
  // is exact, as the sum is.
  static float element(unsigned word, float scale, float less) {
    return __uint_as_float((word & 0x000f0000u) | 0x43000000u) * scale + less;
  }
};

}  // namespace npusim
