// What the matmul, attention and convolution kernels share: conversions of 16-bit floats in pairs,
// and loads of 16 bytes.
#pragma once
#include "kernels/cuda/common/entry.h"

namespace npusim {

template <typename T>
constexpr bool kIs16Bit = kSame<T, float16> || kSame<T, bfloat16>;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
template <typename T>
constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
constexpr T larger(T a, T b) {
  return a > b ? a : b;
}

inline float to_float(float x) {
  return x;
}

// Two values in one register, the first in the low half.
template <typename T>
unsigned pack_pair(float low, float high) {
  if constexpr (sizeof(T) == 2) {
    return encode<T>(low).bits | static_cast<unsigned>(encode<T>(high).bits) << 16;
  } else {
    return 0;  // float: named where y may be of 16 bits, and never called
  }
}

inline bool is_aligned(const void* p, unsigned bytes) {
  return (reinterpret_cast<unsigned long long>(p) & (bytes - 1)) == 0;
}

#ifdef __CUDA_ARCH__
// Loads 16 bytes that nobody reads again, without allocating them in L1. Not a read-only load
// (".nc"): the assembler would move it after a wait for other operands.
inline uint4 load_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Loads 16 bytes that the block's other warps read too; volatile, so that it stays before what
// follows.
inline uint4 load_kept(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
#else
inline uint4 load_once(const void* p) {
  return *static_cast<const uint4*>(p);
}
inline uint4 load_kept(const void* p) {
  return *static_cast<const uint4*>(p);
}
#endif

// Returns 0, in a way that depends on all loads. Accumulators that start from it make the compiler
// issue every load before the first use; left alone, it saves registers and keeps few loads in
// flight. (blockIdx.z is always 0 here, which the compiler does not know.)
template <int kSteps, int kStreams>
float zero_on_arrival(const uint4 (&loaded)[kSteps][kStreams]) {
  unsigned mixed = 0;
#pragma unroll
  for (int u = 0; u < kSteps; ++u) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) mixed ^= loaded[u][i].w;
  }
  return __uint_as_float(mixed & blockIdx.z);
}

// The elements of 16 bytes as float.
template <typename T>
void unpack(const uint4& v, float* out) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kSame<T, float>) {
      out[i] = __uint_as_float(words[i]);
    } else {
      out[2 * i] = to_float(T{static_cast<unsigned short>(words[i])});
      out[2 * i + 1] = to_float(T{static_cast<unsigned short>(words[i] >> 16)});
    }
  }
}

// `kCount` elements (whole 16 bytes of them) as float.
template <int kCount, typename T>
void load_floats(const T* p, float* out) {
  constexpr int kEach = 16 / sizeof(T);
  static_assert(kCount % kEach == 0 || kEach % kCount == 0);
  if constexpr (kCount < kEach) {  // half of them
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    unpack<T>({v.x, v.y, 0, 0}, out);
  } else {
#pragma unroll
    for (int i = 0; i < kCount / kEach; ++i) {
      unpack<T>(reinterpret_cast<const uint4*>(p)[i], out + i * kEach);
    }
  }
}

}  // namespace npusim
