// Elements of a storage dtype seen as the numbers that compute: float for float32 and the 16-bit
// floats, double for float64. Owns stores whose dtype is known only at run time.
#pragma once

#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int32_t kFloat64 = static_cast<int32_t>(abi::DType::kFloat64);

// What T computes in: float for the float types, double for float64, int64_t for integers and bool.
template <typename T>
struct NumberOf {
  using type = int64_t;
};
template <>
struct NumberOf<float> {
  using type = float;
};
template <>
struct NumberOf<float16> {
  using type = float;
};
template <>
struct NumberOf<bfloat16> {
  using type = float;
};
template <>
struct NumberOf<double> {
  using type = double;
};
template <typename T>
using Number = typename NumberOf<T>::type;

inline double to_real(double x) {
  return x;
}
template <typename T>
float to_real(T x) {
  return to_float(x);
}

// Calls f with a value of the storage type of a real dtype: the float types and float64.
template <typename F>
inline auto with_real_type(int32_t dtype, F&& f) {
  if (dtype == kFloat64) return f(double{});
  return with_float_type(dtype, f);
}

// The first `n` elements, all lanes if there are that many; zero beyond them.
template <typename T>
inline Vec load_lanes(const T* p, int64_t n) {
  return n >= kLanes ? load(p) : load_part(p, n);
}
template <typename T>
inline void store_lanes(T* p, Vec v, int64_t n) {
  if (n >= kLanes) return store(p, v);
  store_part(p, v, n);
}

inline BVec load_pair_lanes(const bfloat16* p, int64_t n) {
  return n >= kPairLanes ? load_pairs(p) : load_pairs_part(p, n);
}

// Stores the first `n` lanes at element `at` of `y`, a float dtype.
inline void store_as(int32_t dtype, void* y, int64_t at, Vec v, int64_t n) {
  if (dtype == 0) return store_lanes(static_cast<float*>(y) + at, v, n);
  with_float_type(dtype,
                  [=](auto type) { store_lanes(static_cast<decltype(type)*>(y) + at, v, n); });
}

// Stores one number as element `at` of `y`, a real dtype.
template <typename Real>
inline void store_as(int32_t dtype, void* y, int64_t at, Real value) {
  if (dtype == kFloat64) {
    static_cast<double*>(y)[at] = value;
    return;
  }
  with_float_type(dtype, [=](auto type) {
    static_cast<decltype(type)*>(y)[at] = from_float<decltype(type)>(static_cast<float>(value));
  });
}

}  // namespace npusim::cpu::NPUSIM_ISA
