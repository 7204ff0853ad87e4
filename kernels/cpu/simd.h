// Vectors of the instruction set this file is compiled for, on the compiler's own vector types:
// one source for SSE2, AVX2, AVX-512 and NEON. Owns loads, stores, tails, rounding, horizontal
// sums and the conversions between storage dtypes and compute lanes. `kLanes` floats make a Vec.
//
// The only intrinsics of the kernels are the half-precision conversions, the masks and the dot
// products of pairs below. Nothing here (or in any kernel) may instantiate a standard template with
// external linkage: the linker would keep one copy for all instruction sets, and it could be the
// one this processor cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace npusim::cpu::NPUSIM_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

template <typename T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * N), may_alias));
  // Same, with the alignment of one element: what memory operands have.
  typedef T unaligned __attribute__((vector_size(sizeof(T) * N), may_alias, aligned(alignof(T))));
};

using Vec = VectorOf<float, kLanes>::type;
using IVec = VectorOf<int32_t, kLanes>::type;
using UVec = VectorOf<uint32_t, kLanes>::type;
// Half as many doubles: what fits the same register. For steps that need more than float's digits.
inline constexpr int kDoubles = kLanes / 2;
using DVec = VectorOf<double, kDoubles>::type;
using LVec = VectorOf<int64_t, kDoubles>::type;

inline Vec load(const float* p) {
  return *reinterpret_cast<const VectorOf<float, kLanes>::unaligned*>(p);
}
inline void store(float* p, Vec v) {
  *reinterpret_cast<VectorOf<float, kLanes>::unaligned*>(p) = v;
}
inline Vec broadcast(float x) {
  return x - Vec{};
}

// a + b and a - b, wrapping, which signed lanes by themselves must not: sums of products of bytes
// may be any, and so may what NaN leaves in integers.
inline IVec wrapping_sum(IVec a, IVec b) {
  return reinterpret_cast<IVec>(reinterpret_cast<UVec>(a) + reinterpret_cast<UVec>(b));
}
inline IVec difference(IVec a, IVec b) {
  return reinterpret_cast<IVec>(reinterpret_cast<UVec>(a) - reinterpret_cast<UVec>(b));
}

// Storage types of 16 bits; the arithmetic type is always float.
struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

inline float bits_to_float(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
inline uint32_t float_to_bits(float x) {
  uint32_t out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}
inline Vec as_float(UVec v) {
  return reinterpret_cast<Vec>(v);
}
inline Vec as_float(IVec v) {
  return reinterpret_cast<Vec>(v);
}
inline UVec as_bits(Vec v) {
  return reinterpret_cast<UVec>(v);
}

inline float to_float(float x) {
  return x;
}
inline float to_float(bfloat16 x) {
  return bits_to_float(uint32_t{x.bits} << 16);
}
// Multiplying by 2^112 rebiases the exponent and normalises subnormals in one step; infinities and
// NaNs, whose exponent field then reads 2^16 and above, get float's largest exponent.
inline float to_float(float16 x) {
  const float magnitude = bits_to_float((x.bits & 0x7FFFu) << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x1p16f ? 0x7F800000u : 0u;
  return bits_to_float(float_to_bits(magnitude) | special | (x.bits & 0x8000u) << 16);
}

template <typename T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
// Round to nearest even; NaN stays NaN (quiet).
template <>
inline bfloat16 from_float<bfloat16>(float x) {
  const uint32_t bits = float_to_bits(x);
  if (x != x) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}
template <>
inline float16 from_float<float16>(float x) {
  const uint32_t bits = float_to_bits(x), magnitude = bits & 0x7FFFFFFF;
  const uint32_t sign = (bits >> 16) & 0x8000;
  uint32_t half;
  if (magnitude > 0x7F800000) {
    half = 0x7E00;
  } else if (magnitude >= 0x477FF000) {  // 65520 and above round to infinity
    half = 0x7C00;
  } else if (magnitude < 0x38800000) {  // subnormal: the addition aligns and rounds the mantissa
    half = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3F000000;
  } else {
    half = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

inline Vec load(const bfloat16* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)  // a compiler takes the plain conversion in halves
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return as_float((UVec)_mm256_cvtepu16_epi32(half) << 16);
#else
  using Half = VectorOf<uint16_t, kLanes>;
  const auto half = *reinterpret_cast<const Half::unaligned*>(&p->bits);
  return as_float(__builtin_convertvector(half, UVec) << 16);
#endif
}
inline void store(bfloat16* p, Vec v) {
  const UVec bits = as_bits(v);
  const UVec rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const UVec nan = (bits >> 16) | 0x40;
  const UVec out = (v != v) ? nan : rounded;
  using Half = VectorOf<uint16_t, kLanes>;
  *reinterpret_cast<Half::unaligned*>(&p->bits) = __builtin_convertvector(out, Half::type);
}

#if defined(__F16C__) && defined(__AVX512F__)
inline Vec load(const float16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Vec)_mm512_maskz_cvtph_ps(0xFFFF, half);
}
inline void store(float16* p, Vec v) {
  const __m256i half = _mm512_maskz_cvtps_ph(0xFFFF, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}
#elif defined(__F16C__) && defined(__AVX2__)
inline Vec load(const float16* p) {
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store(float16* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, 0));
}
#else
// The scalar conversions above, lane by lane without branches.
inline Vec load(const float16* p) {
  using Half = VectorOf<uint16_t, kLanes>;
  const UVec half =
      __builtin_convertvector(*reinterpret_cast<const Half::unaligned*>(&p->bits), UVec);
  const Vec magnitude = as_float((half & 0x7FFF) << 13) * 0x1p112f;
  const UVec special = reinterpret_cast<UVec>(magnitude >= 0x1p16f) & 0x7F800000u;
  return as_float(as_bits(magnitude) | special | (half & 0x8000) << 16);
}
inline void store(float16* p, Vec v) {
  const UVec magnitude = as_bits(v) & 0x7FFFFFFF, sign = (as_bits(v) >> 16) & 0x8000;
  const UVec normal = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  const UVec subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3F000000;
  UVec half = magnitude < 0x38800000 ? subnormal : normal;
  half = magnitude >= 0x477FF000 ? UVec{} + 0x7C00 : half;
  half = magnitude > 0x7F800000 ? UVec{} + 0x7E00 : half;
  using Half = VectorOf<uint16_t, kLanes>;
  *reinterpret_cast<Half::unaligned*>(&p->bits) = __builtin_convertvector(half | sign, Half::type);
}
#endif

// The first `n` < kLanes elements; lanes beyond them are zero on load, untouched on store.
template <typename T>
inline Vec load_part(const T* p, int64_t n) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(T));
  return load(lanes);
}
template <typename T>
inline void store_part(T* p, Vec v, int64_t n) {
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// Where there are masked loads and stores, parts need no detour through memory.
#if defined(__AVX512F__)
inline __mmask16 first_mask(int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1);
}
inline Vec load_part(const float* p, int64_t n) {
  return (Vec)_mm512_maskz_loadu_ps(first_mask(n), p);
}
inline void store_part(float* p, Vec v, int64_t n) {
  _mm512_mask_storeu_ps(p, first_mask(n), (__m512)v);
}
#if defined(__AVX512BW__)
// The 16 bits of bfloat16 and float16: the first of a vector, and floats rounded to them.
template <typename T>
inline __m256i halves_part(const T* p, int64_t n) {
  return _mm256_maskz_loadu_epi16(first_mask(n), p);
}
template <typename T>
inline void store_halves_part(T* p, Vec v, int64_t n) {
  T lanes[kLanes];  // stays in a register
  store(lanes, v);
  __m256i halves;
  std::memcpy(&halves, lanes, sizeof halves);
  _mm256_mask_storeu_epi16(p, first_mask(n), halves);
}
inline Vec load_part(const bfloat16* p, int64_t n) {
  return as_float((UVec)_mm512_maskz_cvtepu16_epi32(0xFFFF, halves_part(p, n)) << 16);
}
inline Vec load_part(const float16* p, int64_t n) {
  return (Vec)_mm512_maskz_cvtph_ps(0xFFFF, halves_part(p, n));
}
inline void store_part(bfloat16* p, Vec v, int64_t n) {
  store_halves_part(p, v, n);
}
inline void store_part(float16* p, Vec v, int64_t n) {
  store_halves_part(p, v, n);
}
#endif
#elif defined(__AVX2__)
inline __m256i first_mask(int64_t n) {
  static constexpr int32_t kMasks[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + kLanes - n));
}
inline Vec load_part(const float* p, int64_t n) {
  return (Vec)_mm256_maskload_ps(p, first_mask(n));
}
inline void store_part(float* p, Vec v, int64_t n) {
  _mm256_maskstore_ps(p, first_mask(n), (__m256)v);
}
#endif

// ---- dot products of pairs: lane i of the result is acc[i] + a[2i]·b[2i] + a[2i+1]·b[2i+1], over
// twice as many 16-bit elements as a Vec has floats.
inline constexpr int kPairLanes = 2 * kLanes;
using BVec = VectorOf<uint16_t, kPairLanes>::type;  // bits of bfloat16
using SVec = VectorOf<int16_t, kPairLanes>::type;

inline BVec load_pairs(const bfloat16* p) {
  return *reinterpret_cast<const VectorOf<uint16_t, kPairLanes>::unaligned*>(&p->bits);
}
inline SVec load_pairs(const int16_t* p) {
  return *reinterpret_cast<const VectorOf<int16_t, kPairLanes>::unaligned*>(p);
}
inline void store_pairs(bfloat16* p, BVec v) {
  *reinterpret_cast<VectorOf<uint16_t, kPairLanes>::unaligned*>(&p->bits) = v;
}
inline void store_pairs(int16_t* p, SVec v) {
  *reinterpret_cast<VectorOf<int16_t, kPairLanes>::unaligned*>(p) = v;
}
// The first `n` < kPairLanes elements, zeros beyond them.
inline BVec load_pairs_part(const bfloat16* p, int64_t n) {
#if defined(__AVX512BW__)
  return (BVec)_mm512_maskz_loadu_epi16((1u << n) - 1, p);
#else
  BVec lanes{};
  std::memcpy(&lanes, p, static_cast<size_t>(n) * sizeof *p);
  return lanes;
#endif
}

// The same vector, read from memory once: x86 could read it again for every use.
template <typename V>
inline V in_register(V v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
  return v;
}

// Whether one instruction does it for bfloat16 (which reads subnormals as zero); it takes two
// widenings and two multiply-adds otherwise.
#if defined(__AVX512BF16__)
inline constexpr bool kDotsBfloat16 = true;
inline Vec dot_pairs(Vec acc, BVec a, BVec b) {
  return (Vec)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
}
// Lane by lane (even[i], odd[i]), rounded to bfloat16.
inline BVec rounded_pairs(Vec even, Vec odd) {
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
  const __m512i order = _mm512_add_epi16(
      _mm512_cvtepu8_epi16(_mm256_set1_epi16(0x1000)),  // 0, 16, 0, 16, …
      (__m512i)(UVec{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * 0x10001u));
  return (BVec)_mm512_permutexvar_epi16(order, halves);
}
#else
inline constexpr bool kDotsBfloat16 = false;
inline BVec rounded_pairs(Vec even, Vec odd) {
  const auto rounded = [](Vec v) {
    const UVec bits = reinterpret_cast<UVec>(v);
    return bits + 0x7FFF + ((bits >> 16) & 1);
  };
  return reinterpret_cast<BVec>(rounded(even) >> 16 | (rounded(odd) & 0xFFFF0000u));
}
inline Vec dot_pairs(Vec acc, BVec a, BVec b) {
  const UVec x = reinterpret_cast<UVec>(a), y = reinterpret_cast<UVec>(b);
  acc += as_float(x << 16) * as_float(y << 16);
  return acc + as_float(x & 0xFFFF0000u) * as_float(y & 0xFFFF0000u);
}
#endif

// acc + products, wrapping. The compiler is kept from adding products up before they meet acc,
// which takes more registers than there are.
inline IVec add_products(IVec acc, IVec products) {
  acc = wrapping_sum(acc, products);
#if defined(__x86_64__)
  asm("" : "+v"(acc));
#endif
  return acc;
}

// Integers wrap; a pair of -32768 by -32768 is the only one that can exceed int32 by itself.
inline IVec dot_pairs(IVec acc, SVec a, SVec b) {
#if defined(__AVX512VNNI__)
  return (IVec)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return add_products(acc, (IVec)_mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif defined(__AVX2__)
  return add_products(acc, (IVec)_mm256_madd_epi16((__m256i)a, (__m256i)b));
#elif defined(__SSE2__)
  return add_products(acc, (IVec)_mm_madd_epi16((__m128i)a, (__m128i)b));
#elif defined(__aarch64__)
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
  return add_products(acc, (IVec)vpaddq_s32(low, vmull_high_s16(x, y)));
#else
  const IVec x = reinterpret_cast<IVec>(a), y = reinterpret_cast<IVec>(b);
  const IVec low = (x << 16 >> 16) * (y << 16 >> 16), high = (x >> 16) * (y >> 16);
  return wrapping_sum(acc, wrapping_sum(low, high));
#endif
}

// Dot products of quads: lane i of the result is acc[i] + Σ a[4i + j]·b[4i + j] over j < 4, bytes
// of a unsigned and those of b signed. Exact: no sum of two saturates on its way; int32 wraps.
inline IVec dot_quads(IVec acc, IVec a, IVec b) {
#if defined(__AVX512VNNI__)
  return (IVec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#else
  const UVec x = reinterpret_cast<UVec>(a);
  const SVec even = reinterpret_cast<SVec>(x & 0x00FF00FF);
  const SVec odd = reinterpret_cast<SVec>((x >> 8) & 0x00FF00FF);
  const SVec w = reinterpret_cast<SVec>(b);
  return dot_pairs(dot_pairs(acc, even, w << 8 >> 8), odd, w >> 8);
#endif
}
// All lanes hold the four bytes at p.
inline IVec broadcast_quad(const uint8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return quad - IVec{};
}
inline IVec load(const int32_t* p) {
  return *reinterpret_cast<const VectorOf<int32_t, kLanes>::unaligned*>(p);
}
inline void store(int32_t* p, IVec v) {
  *reinterpret_cast<VectorOf<int32_t, kLanes>::unaligned*>(p) = v;
}
// Bytes as lanes, and the low bytes of lanes. Of parts, the first `n` < kLanes; zeros after them.
// The compilers take the plain conversions apart, byte by byte.
inline IVec load_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return (IVec)_mm512_maskz_cvtepu8_epi32(0xFFFF,
                                          _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (IVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  using Bytes = VectorOf<uint8_t, kLanes>;
  return __builtin_convertvector(*reinterpret_cast<const Bytes::unaligned*>(p), IVec);
#endif
}
inline IVec load_bytes(const int8_t* p) {
  return load_bytes(reinterpret_cast<const uint8_t*>(p)) << 24 >> 24;
}
template <typename T>
inline IVec load_bytes_part(const T* p, int64_t n) {
#if defined(__AVX512BW__)
  const __m128i there = _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << n) - 1), p);
  if constexpr (std::is_signed_v<T>) return (IVec)_mm512_maskz_cvtepi8_epi32(0xFFFF, there);
  return (IVec)_mm512_maskz_cvtepu8_epi32(0xFFFF, there);
#else
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n));
  return load_bytes(lanes);
#endif
}
template <typename T>
inline void store_bytes(T* p, IVec v) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)v));
#elif defined(__AVX2__)
  const __m256i low = (__m256i)(v & 0xFF);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
#else
  using Bytes = VectorOf<T, kLanes>;
  *reinterpret_cast<typename Bytes::unaligned*>(p) =
      __builtin_convertvector(v, typename Bytes::type);
#endif
}
template <typename T>
inline void store_bytes_part(T* p, IVec v, int64_t n) {
  T lanes[kLanes];
  store_bytes(lanes, v);
#if defined(__AVX512BW__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes));
  _mm_mask_storeu_epi8(p, static_cast<__mmask16>((1u << n) - 1), bytes);
#else
  std::memcpy(p, lanes, static_cast<size_t>(n));
#endif
}
// Halves to the even integer, for magnitudes below 2^22: the sum keeps no fraction.
inline constexpr float kNoFraction = 0x1.8p23F;
inline IVec round_to_integers(Vec x) {
  return difference(reinterpret_cast<IVec>(x + kNoFraction),
                    reinterpret_cast<IVec>(broadcast(kNoFraction)));
}
inline Vec round_small(Vec x) {
  return (x + kNoFraction) - kNoFraction;
}

// a < b ? a : b and a > b ? a : b, which are b where either is NaN or both are zeros: one
// instruction on x86, which compilers take the conditional apart for.
#if defined(__AVX512F__)
inline Vec lesser(Vec a, Vec b) {
  return (Vec)_mm512_maskz_min_ps(0xFFFF, (__m512)a, (__m512)b);
}
inline Vec greater(Vec a, Vec b) {
  return (Vec)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b);
}
#elif defined(__AVX2__)
inline Vec lesser(Vec a, Vec b) {
  return (Vec)_mm256_min_ps((__m256)a, (__m256)b);
}
inline Vec greater(Vec a, Vec b) {
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
}
#elif defined(__SSE2__)
inline Vec lesser(Vec a, Vec b) {
  return (Vec)_mm_min_ps((__m128)a, (__m128)b);
}
inline Vec greater(Vec a, Vec b) {
  return (Vec)_mm_max_ps((__m128)a, (__m128)b);
}
#else
inline Vec lesser(Vec a, Vec b) {
  return a < b ? a : b;
}
inline Vec greater(Vec a, Vec b) {
  return a > b ? a : b;
}
#endif

// Lane i holds i.
inline IVec lane_index() {
  IVec index{};
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index;
}
// The first n lanes of v, `rest` in the others.
inline Vec first_lanes(Vec v, int64_t n, float rest) {
  return lane_index() < static_cast<int32_t>(n) ? v : broadcast(rest);
}

// Lane-wise square root; the compilers turn the loop into one instruction.
inline Vec sqrt(Vec x) {
  Vec out{};
  for (int i = 0; i < kLanes; ++i) out[i] = __builtin_sqrtf(x[i]);
  return out;
}

inline Vec abs(Vec x) {
  return as_float(as_bits(x) & 0x7FFFFFFF);
}
// The magnitude of `x` with the sign of `sign`.
inline Vec copysign(Vec x, Vec sign) {
  return as_float((as_bits(x) & 0x7FFFFFFF) | (as_bits(sign) & 0x80000000));
}

// Rounding to integers. Floats of magnitude 2^23 and above are integers already; below that the
// conversion to int32 is exact. -0 and the sign of results that round to 0 are kept.
inline Vec trunc(Vec x) {
  const Vec whole = __builtin_convertvector(__builtin_convertvector(x, IVec), Vec);
  return abs(x) < 0x1p23f ? copysign(whole, x) : x;
}
inline Vec round_even(Vec x) {
  const Vec shift = copysign(broadcast(0x1p23f), x);
  return abs(x) < 0x1p23f ? copysign((x + shift) - shift, x) : x;
}
inline Vec floor(Vec x) {
  const Vec whole = trunc(x);
  return copysign(whole > x ? whole - 1.0f : whole, x);
}
inline Vec ceil(Vec x) {
  const Vec whole = trunc(x);
  return copysign(whole < x ? whole + 1.0f : whole, x);
}

// The larger and the smaller of each lane; NaN wins from either side.
inline Vec maximum(Vec a, Vec b) {
  return ((b > a) | (b != b)) ? b : a;
}
inline Vec minimum(Vec a, Vec b) {
  return ((b < a) | (b != b)) ? b : a;
}

// Sum of the lanes, pairwise.
inline float sum(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}
// Largest lane; NaN wins.
inline float maximum(Vec v) {
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = v[i] > best || v[i] != v[i] ? v[i] : best;
  return best;
}
inline bool any(IVec mask) {
  int32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= mask[i];
  return bits != 0;
}

// Calls f with a value of the storage type a dtype code names; float dtypes of float compute only.
template <typename F>
inline auto with_float_type(int32_t dtype, F&& f) {
  switch (static_cast<abi::DType>(dtype)) {
    case abi::DType::kFloat16:
      return f(float16{});
    case abi::DType::kBfloat16:
      return f(bfloat16{});
    default:
      return f(float{});
  }
}

// Calls f with a value of the storage type of any dtype code (bool is stored as uint8_t 0 or 1).
template <typename F>
inline auto with_type(int32_t dtype, F&& f) {
  switch (static_cast<abi::DType>(dtype)) {
    case abi::DType::kFloat16:
      return f(float16{});
    case abi::DType::kBfloat16:
      return f(bfloat16{});
    case abi::DType::kFloat64:
      return f(double{});
    case abi::DType::kInt64:
      return f(int64_t{});
    case abi::DType::kInt32:
      return f(int32_t{});
    case abi::DType::kInt16:
      return f(int16_t{});
    case abi::DType::kInt8:
      return f(int8_t{});
    case abi::DType::kUint8:
    case abi::DType::kBool:
      return f(uint8_t{});
    default:
      return f(float{});
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
