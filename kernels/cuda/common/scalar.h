// Elements as CUDA kernels see them: storage types, the three compute classes of abi/scalar.py
// (float, double, int64_t), conversions between both, whole packs of up to 16 bytes, and the flag
// through which a kernel reports what only running reveals.
#pragma once
#include "kernels/shared/abi.h"

// Address spaces, where a language has several: a GPU's memory, constants, a thread's variables.
#define NPUSIM_GLOBAL
#define NPUSIM_CONSTANT
#define NPUSIM_THREAD

namespace npusim {

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};
struct boolean {
  uint8_t value;
};

template <int32_t kDType>
struct StorageOf;
template <>
struct StorageOf<0> {
  using type = float;
};
template <>
struct StorageOf<1> {
  using type = float16;
};
template <>
struct StorageOf<2> {
  using type = bfloat16;
};
template <>
struct StorageOf<3> {
  using type = double;
};
template <>
struct StorageOf<4> {
  using type = int64_t;
};
template <>
struct StorageOf<5> {
  using type = int32_t;
};
template <>
struct StorageOf<6> {
  using type = int16_t;
};
template <>
struct StorageOf<7> {
  using type = int8_t;
};
template <>
struct StorageOf<8> {
  using type = uint8_t;
};
template <>
struct StorageOf<9> {
  using type = boolean;
};
// The C++ type of a dtype code.
template <int32_t kDType>
using Storage = typename StorageOf<kDType>::type;

template <int kClass>
struct ClassOf {
  using type = float;
};
template <>
struct ClassOf<1> {
  using type = double;
};
template <>
struct ClassOf<2> {
  using type = int64_t;
};
// What elements of a dtype compute in.
template <int32_t kDType>
using Compute = typename ClassOf<(kDType < 3 ? 0 : (kDType == 3 ? 1 : 2))>::type;

template <typename A, typename B>
constexpr bool kSame = false;
template <typename A>
constexpr bool kSame<A, A> = true;
template <typename T>
constexpr bool kIsReal = kSame<T, float> || kSame<T, double>;

// Unsigned integers of an element's size.
template <int kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  using type = uint8_t;
};
template <>
struct BitsOf<2> {
  using type = uint16_t;
};
template <>
struct BitsOf<4> {
  using type = uint32_t;
};
template <>
struct BitsOf<8> {
  using type = uint64_t;
};

#ifdef __CUDA_ARCH__
inline float to_float(float16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
inline float16 to_float16(float x) {
  float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
inline bfloat16 to_bfloat16(float x) {
  bfloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
#else
float to_float(float16 x);
float16 to_float16(float x);
bfloat16 to_bfloat16(float x);
#endif
inline float to_float(bfloat16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

constexpr int64_t kSmallest = -9223372036854775807LL - 1;
constexpr int32_t kSmallest32 = -2147483647 - 1;
constexpr int64_t kLargest = 9223372036854775807LL;
template <typename C>
constexpr C kInfinity = __builtin_bit_cast(float, 0x7f800000U);
template <>
constexpr int64_t kInfinity<int64_t> = kLargest;
template <typename C>
constexpr C infinity() {
  return kInfinity<C>;
}
template <typename C>
constexpr C kNan = __builtin_bit_cast(float, 0x7fc00000U);

// Truncates toward zero. What does not fit (NaN too) becomes the smallest integer, as on the CPU.
template <typename Real>
inline int64_t to_integer(Real x) {
  constexpr Real limit = static_cast<Real>(9223372036854775808.0);
  return x >= -limit && x < limit ? static_cast<int64_t>(x) : kSmallest;
}

// The same for int32, whose low bits the narrower signed dtypes take.
template <typename Real>
inline int32_t to_integer32(Real x) {
  constexpr Real limit = static_cast<Real>(2147483648.0);
  if constexpr (kSame<Real, double>) {
    return x > -limit - 1 && x < limit ? static_cast<int32_t>(x) : kSmallest32;
  } else {
    return x >= -limit && x < limit ? static_cast<int32_t>(x) : kSmallest32;
  }
}

// One stored element as a number of class C.
template <typename C, typename T>
inline C decode(T x) {
  if constexpr (kSame<T, boolean>) {
    return static_cast<C>(x.value != 0);
  } else if constexpr (kSame<T, float16> || kSame<T, bfloat16>) {
    if constexpr (kSame<C, int64_t>) {
      return to_integer(to_float(x));
    } else {
      return static_cast<C>(to_float(x));
    }
  } else if constexpr (kSame<C, int64_t> && kIsReal<T>) {
    return to_integer(x);
  } else {
    return static_cast<C>(x);
  }
}

// The inverse: one number of class C as stored in T.
template <typename T, typename C>
inline T encode(C x) {
  if constexpr (kSame<T, boolean>) {
    return {static_cast<uint8_t>(x != 0)};
  } else if constexpr (kSame<T, float16>) {
    return to_float16(static_cast<float>(x));
  } else if constexpr (kSame<T, bfloat16>) {
    return to_bfloat16(static_cast<float>(x));
  } else if constexpr (!kIsReal<C> || kIsReal<T>) {
    return static_cast<T>(x);
  } else if constexpr (kSame<T, int64_t> || kSame<T, uint8_t>) {
    return static_cast<T>(to_integer(x));  // uint8 goes by way of int64, as on the CPU
  } else {
    return static_cast<T>(to_integer32(x));
  }
}

// The number, where one of both is NaN; and to the nearest integer, of two the even one.
inline float lesser_number(float a, float b) {
  return fminf(a, b);
}
inline float larger_number(float a, float b) {
  return fmaxf(a, b);
}
inline float rounded(float x) {
  return rintf(x);
}
inline unsigned float_bits(float x) {
  return __float_as_uint(x);
}
inline float float_of_bits(unsigned bits) {
  return __uint_as_float(bits);
}
inline float magnitude(float x) {
  return fabsf(x);
}

// kCount neighbours that move as one access where their address allows it.
template <int kBytes>
struct Words {
  using type = typename BitsOf<kBytes>::type;
};
template <>
struct Words<16> {
  using type = uint4;
};
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};
template <int kCount, typename T>
inline bool is_packed(const T* p) {
  return reinterpret_cast<uint64_t>(p) % (sizeof(T) * kCount) == 0;
}
template <int kCount, typename T>
inline Pack<T, kCount> load_pack(const T* p) {
  using W = typename Words<sizeof(T) * kCount>::type;
  using P = Pack<T, kCount>;
  return __builtin_bit_cast(P, *reinterpret_cast<const W*>(p));
}
template <int kCount, typename T>
inline void store_pack(T* p, const Pack<T, kCount>& pack) {
  using W = typename Words<sizeof(T) * kCount>::type;
  *reinterpret_cast<W*>(p) = __builtin_bit_cast(W, pack);
}

// What the runtime reads after a run: the first thread that reports wins.
struct Failure {
  int32_t code;
  int32_t pad;
  long long value;
  long long limit;
};
enum FailureCode : int32_t { kOutOfRange = 1, kDivisionByZero = 2 };

inline void report(Failure* failure, FailureCode code, int64_t value, int64_t limit) {
  if (atomicCAS(&failure->code, 0, static_cast<int32_t>(code)) != 0) return;
  failure->value = value;
  failure->limit = limit;
}

}  // namespace npusim
