// Between storage dtypes and the three compute classes of python/npusim/abi/scalar.py: float for
// class "f", double for "d", int64_t for "i". Owns what a conversion means (truncation toward
// zero, wrapping integers, bool as x != 0) and the loops that convert a strided run of elements.
#pragma once

#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {

enum ComputeClass : int32_t { kClassF = 0, kClassD = 1, kClassI = 2 };

// The class a storage dtype computes in.
inline int32_t compute_class(int32_t dtype) {
  if (dtype == static_cast<int32_t>(abi::DType::kFloat64)) return kClassD;
  return dtype <= static_cast<int32_t>(abi::DType::kBfloat16) ? kClassF : kClassI;
}

template <typename F>
inline auto with_class(int32_t compute, F&& f) {
  if (compute == kClassD) return f(double{});
  if (compute == kClassI) return f(int64_t{});
  return f(float{});
}

// Storage of dtype bool: its conversions differ from uint8's.
struct boolean {
  uint8_t value;
};

// As with_type of simd.h, with bool told apart.
template <typename F>
inline auto with_storage(int32_t dtype, F&& f) {
  if (dtype == static_cast<int32_t>(abi::DType::kBool)) return f(boolean{});
  return with_type(dtype, f);
}

// Truncates toward zero. What does not fit (NaN too) becomes the least integer, as the
// conversion instruction of x86 has it and PyTorch therefore.
template <typename Real>
inline int64_t to_integer(Real x) {
  return x >= Real{-0x1p63} && x < Real{0x1p63} ? static_cast<int64_t>(x) : INT64_MIN;
}

// The same for int32, whose low bits the narrower signed dtypes take.
template <typename Real>
inline int32_t to_integer32(Real x) {
  constexpr bool kIsDouble = sizeof(Real) == 8;  // which may end in .5 below -2^31
  const bool above = kIsDouble ? x > Real{-0x1p31} - 1 : x >= Real{-0x1p31};
  return above && x < Real{0x1p31} ? static_cast<int32_t>(x) : INT32_MIN;
}

// One stored element as a number of class C.
template <typename C, typename T>
inline C decode(T x) {
  if constexpr (__is_same(T, boolean)) {
    return static_cast<C>(x.value != 0);
  } else if constexpr (__is_same(T, float16) || __is_same(T, bfloat16)) {
    return decode<C>(to_float(x));
  } else if constexpr (__is_same(C, int64_t) && (__is_same(T, float) || __is_same(T, double))) {
    return to_integer(x);
  } else {
    return static_cast<C>(x);
  }
}

// The inverse: one number of class C as stored in T.
template <typename T, typename C>
inline T encode(C x) {
  if constexpr (__is_same(T, boolean)) {
    return {static_cast<uint8_t>(x != 0)};
  } else if constexpr (__is_same(T, float16) || __is_same(T, bfloat16)) {
    return from_float<T>(static_cast<float>(x));
  } else if constexpr (__is_same(C, int64_t) || __is_same(T, float) || __is_same(T, double)) {
    return static_cast<T>(x);
  } else if constexpr (__is_same(T, int64_t) || __is_same(T, uint8_t)) {
    return static_cast<T>(to_integer(x));  // uint8 goes by way of int64, in PyTorch too
  } else {
    return static_cast<T>(to_integer32(x));
  }
}

template <typename C>
inline C decode_one(int32_t dtype, const void* p, int64_t at = 0) {
  return with_storage(
      dtype, [&](auto type) { return decode<C>(static_cast<const decltype(type)*>(p)[at]); });
}
template <typename C>
inline void encode_one(int32_t dtype, void* p, int64_t at, C value) {
  with_storage(dtype, [&](auto type) {
    using T = decltype(type);
    static_cast<T*>(p)[at] = encode<T>(value);
  });
}

// Lanes as bytes, as encode has it: truncated, and wrapped; the least int32's low byte is 0.
template <typename T>
inline void store_truncated(T* p, Vec v) {
  store_bytes(p, __builtin_convertvector(abs(v) < 0x1p31F ? v : Vec{}, IVec));
}

// out[i] = p[i * stride] for i in [0, n).
template <typename C, typename T>
inline void decode_run(const T* p, int64_t stride, int64_t n, C* out) {
  int64_t i = 0;
  if constexpr (__is_same(C, float) && (__is_same(T, int8_t) || __is_same(T, uint8_t))) {
    for (; stride == 1 && i + kLanes <= n; i += kLanes) {
      store(out + i, __builtin_convertvector(load_bytes(p + i), Vec));
    }
  }
  if constexpr (__is_same(C, float) && sizeof(T) == 2 && !__is_same(T, int16_t)) {
    for (; stride == 1 && i + kLanes <= n; i += kLanes) store(out + i, load(p + i));
  }
  for (; i < n; ++i) out[i] = decode<C>(p[i * stride]);
}
// p[i * stride] = in[i * step] for i in [0, n); step is 0 or 1.
template <typename T, typename C>
inline void encode_run(const C* in, int64_t step, int64_t n, T* p, int64_t stride) {
  int64_t i = 0;
  if constexpr (__is_same(C, float) && (__is_same(T, int8_t) || __is_same(T, uint8_t))) {
    for (; stride == 1 && step == 1 && i + kLanes <= n; i += kLanes) {
      store_truncated(p + i, load(in + i));
    }
  }
  if constexpr (__is_same(C, float) && sizeof(T) == 2 && !__is_same(T, int16_t)) {
    for (; stride == 1 && step == 1 && i + kLanes <= n; i += kLanes) store(p + i, load(in + i));
  }
  for (; i < n; ++i) p[i * stride] = encode<T>(in[i * step]);
}

// The same by dtype codes, for each compute class. They are compiled once, in convert.cpp: a switch
// over all dtypes in each caller made kernels several times as large.
template <typename C>
void decode_run(int32_t dtype, const void* p, int64_t stride, int64_t n, C* out);
template <typename C>
void encode_run(const C* in, int64_t step, int64_t n, int32_t dtype, void* p, int64_t stride);

}  // namespace npusim::cpu::NPUSIM_ISA
