// Vectors of the instruction set this file is compiled for, on the compiler's own vector types:
// one source for SSE2, AVX2, AVX-512 and NEON. Owns loads, stores, tails and the conversions
// between storage dtypes and compute lanes. `kLanes` floats make a Vec.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel.h"

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

inline Vec load(const float* p) {
  return *reinterpret_cast<const VectorOf<float, kLanes>::unaligned*>(p);
}
inline void store(float* p, Vec v) {
  *reinterpret_cast<VectorOf<float, kLanes>::unaligned*>(p) = v;
}
inline Vec broadcast(float x) { return x - Vec{}; }

// Storage types of 16 bits; the arithmetic type is always float.
struct bfloat16 {
  uint16_t bits;
};
#if defined(__FLT16_MAX__)
using float16 = _Float16;
#else
using float16 = __fp16;
#endif

inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
inline float to_float(float16 x) { return static_cast<float>(x); }

template <typename T>
inline T from_float(float x) {
  return static_cast<T>(x);
}
// Round to nearest even; NaN stays NaN (quiet).
template <>
inline bfloat16 from_float<bfloat16>(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

inline Vec load(const bfloat16* p) {
  using Half = VectorOf<uint16_t, kLanes>;
  const auto half = *reinterpret_cast<const Half::unaligned*>(&p->bits);
  return reinterpret_cast<Vec>(__builtin_convertvector(half, UVec) << 16);
}
inline Vec load(const float16* p) {
  return __builtin_convertvector(
      *reinterpret_cast<const VectorOf<float16, kLanes>::unaligned*>(p), Vec);
}
inline void store(bfloat16* p, Vec v) {
  const UVec bits = reinterpret_cast<UVec>(v);
  const UVec rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const UVec nan = (bits >> 16) | 0x40;
  const UVec out = (v != v) ? nan : rounded;
  using Half = VectorOf<uint16_t, kLanes>;
  *reinterpret_cast<Half::unaligned*>(&p->bits) = __builtin_convertvector(out, Half::type);
}
inline void store(float16* p, Vec v) {
  using Half = VectorOf<float16, kLanes>;
  *reinterpret_cast<Half::unaligned*>(p) = __builtin_convertvector(v, Half::type);
}

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

}  // namespace npusim::cpu::NPUSIM_ISA
