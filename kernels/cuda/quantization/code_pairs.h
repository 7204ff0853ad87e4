// Codes as pairs of 16-bit floats, without rounding: bits are put behind those of a power of two,
// which is then subtracted.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

// The bytes of a word, two at a time, each below the byte `above`.
inline unsigned spread_bytes(unsigned word, unsigned above, int pair) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, above, pair == 0 ? 0x4140 : 0x4342);
#else
  const unsigned two = word >> (16 * pair);
  return (two & 0xff) | (two & 0xff00) << 8 | above << 8 | above << 24;
#endif
}

// The same, each below as many bits as its highest one.
inline unsigned spread_signed_bytes(unsigned word, int pair) {
#ifdef __CUDA_ARCH__
  unsigned spread;  // __byte_perm does without the bit of a selector that repeats a byte's sign
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(spread) : "r"(word), "r"(pair == 0 ? 0x9180 : 0xb3a2));
  return spread;
#else
  const unsigned two = word >> (16 * pair), signs = (two >> 7 & 1) | (two >> 15 & 1) << 16;
  return (two & 0xff) | (two & 0xff00) << 8 | signs * 0xff00;
#endif
}

// a * b + c of two pairs of T, each rounded once.
template <typename T>
unsigned multiply_add_pairs(unsigned a, unsigned b, unsigned c) {
#ifdef __CUDA_ARCH__
  unsigned sum;
  if constexpr (kSame<T, bfloat16>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  }
  return sum;
#else
  const auto part = [](unsigned pair, int i) {
    return to_float(T{static_cast<uint16_t>(pair >> (16 * i))});
  };
  return pack_pair<T>(part(a, 0) * part(b, 0) + part(c, 0), part(a, 1) * part(b, 1) + part(c, 1));
#endif
}

// Codes 2i and 2i + 1 of a word of int8, of which the high bits are turned over: 1024 + (code +
// 128), less 1152.
inline unsigned byte_pair(unsigned word, int i) {
  return multiply_add_pairs<float16>(spread_bytes(word, 0x64, i), 0x3c003c00u, 0xe480e480u);
}
// Pair i of a word of int4, less 8: 1024 + code, less 1032; or (1024 + 16 code) / 16, less 72.
inline unsigned nibble_pair(unsigned word, int i) {
  const unsigned low = i < 2 ? word : word >> 8;
  if (i % 2 == 0) {
    return multiply_add_pairs<float16>((low & 0x000f000fu) | 0x64006400u, 0x3c003c00u, 0xe408e408u);
  }
  return multiply_add_pairs<float16>((low & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, 0xd480d480u);
}

// The same times 2^-9, of a word as it is (i < 2) or 8 bits further down: what a mask leaves is
// a number below all normal ones, which a multiplication makes normal. Its constants are one an
// instruction, where bits behind a power of two need a register for another.
constexpr float kNibbleScale = 512.0f;
inline unsigned small_nibble_pair(unsigned word, int i) {
  return i % 2 == 0 ? multiply_add_pairs<float16>(word & 0x000f000fu, 0x78007800u, 0xa400a400u)
                    : multiply_add_pairs<float16>(word & 0x00f000f0u, 0x68006800u, 0xa400a400u);
}

// Small pairs of T, as exact as the codes: times 2^-9 of float16, 2^-6 of bfloat16. What a byte
// stands for as the low bits of a bfloat16 is its value times 2^-133, as the least exponent of
// normal numbers is that of the smaller ones.
template <typename T>
constexpr float kSmallScale = kSame<T, bfloat16> ? 64.0f : 512.0f;
// Of nibbles, as above, plus `less`: minus their zero point, times 2^-9 or 2^-6, twice.
template <typename T>
unsigned small_nibble_pair_as(unsigned word, int i, unsigned less) {
  constexpr bool kShort = kSame<T, bfloat16>;
  constexpr unsigned kLow = kShort ? 0x7f007f00u : 0x78007800u;
  constexpr unsigned kHigh = kShort ? 0x7d007d00u : 0x68006800u;
  return i % 2 == 0 ? multiply_add_pairs<T>(word & 0x000f000fu, kLow, less)
                    : multiply_add_pairs<T>(word & 0x00f000f0u, kHigh, less);
}
// Minus a zero point in sixteenths, for the above.
template <typename T>
unsigned small_zero_pair(unsigned sixteenths) {
  const float less = static_cast<float>(sixteenths) * (-0.0625f / kSmallScale<T>);
  return pack_pair<T>(less, less);
}

// The same as pairs of T, of words as they are stored. bfloat16 has seven bits behind a power of
// two: an int8 is 128 and its low bits, less 128 or, where its high bit is set, 256.
template <typename T>
unsigned byte_pair_as(unsigned word, int i) {
  if constexpr (kSame<T, bfloat16>) {
    const unsigned two = spread_bytes(word, 0, i);
    return multiply_add_pairs<T>((two & 0x00800080u) | 0x43004300u, 0xbf80bf80u,
                                 (two & 0x007f007fu) | 0x43004300u);
  } else {
    return byte_pair(word ^ 0x80808080u, i);
  }
}
// Codes over kByteScale, of a word whose high bits are turned over: bytes of code + 128.
template <typename T>
constexpr float kByteScale = kSame<T, bfloat16> ? 64.0f : 1.0f;
template <typename T>
unsigned small_byte_pair(unsigned turned, int i) {
  if constexpr (kSame<T, bfloat16>) {
    return multiply_add_pairs<T>(spread_bytes(turned, 0, i), 0x7f007f00u, 0xc000c000u);
  } else {
    return byte_pair(turned, i);
  }
}
// Codes 2i and 2i + 1 of a word of float8. Where the processor converts none, and for bfloat16,
// their bits are those of numbers that are 2^8 or 2^120 times as small.
template <typename T>
unsigned float8_pair_as(unsigned word, int i) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (kSame<T, float16>) {
    unsigned pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
        : "=r"(pair)
        : "h"(static_cast<unsigned short>(word >> (16 * i))));
    return pair;
  }
#endif
  constexpr bool kShort = kSame<T, bfloat16>;
  constexpr unsigned kKept = kShort ? 0x87f087f0u : 0xbf80bf80u,
                     kUp = kShort ? 0x7b807b80u : 0x5c005c00u;
  const unsigned wide = spread_signed_bytes(word, i) << (kShort ? 4 : 7);
  return multiply_add_pairs<T>(wide & kKept, kUp, 0x80008000u);
}

template <typename T>
unsigned nibble_pair_as(unsigned word, int i) {
  if constexpr (kSame<T, bfloat16>) {
    return multiply_add_pairs<T>(((word >> (4 * i)) & 0x000f000fu) | 0x43004300u, 0x3f803f80u,
                                 0xc308c308u);
  } else {
    return nibble_pair(word, i);
  }
}

}  // namespace npusim
