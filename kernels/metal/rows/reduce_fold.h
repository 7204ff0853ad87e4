// The folds that reductions are made of: start(), with(state, element, position), both(a, b), and a
// state as bits that threads exchange. C is the class of elements. Sums and products of reals are
// wide, those of integers wrap.
#pragma once
#include "kernels/metal/common/wide.h"

namespace npusim {

inline uint4 bits_of(Wide x) {
  return uint4(as_type<uint>(x.high), as_type<uint>(x.low), as_type<uint>(x.scale), 0u);
}
inline uint4 bits_of(float x) {
  return uint4(as_type<uint>(x), 0u, 0u, 0u);
}
inline uint4 bits_of(int32_t x) {
  return uint4(as_type<uint>(x), 0u, 0u, 0u);
}
inline uint4 bits_of(int64_t x) {
  return uint4(as_type<uint2>(x), 0u, 0u);
}
inline uint4 bits_of(uint64_t x) {
  return uint4(as_type<uint2>(x), 0u, 0u);
}
template <typename S>
struct FromBits {
  static S of(uint4 b) { return as_type<S>(b.xy); }
};
template <>
struct FromBits<float> {
  static float of(uint4 b) { return as_type<float>(b.x); }
};
template <>
struct FromBits<int32_t> {
  static int32_t of(uint4 b) { return as_type<int32_t>(b.x); }
};
template <>
struct FromBits<Wide> {
  static Wide of(uint4 b) {
    return {as_type<float>(b.x), as_type<float>(b.y), as_type<int32_t>(b.z)};
  }
};

// What sums and products of a class are in.
template <typename C>
struct TotalOf {
  typedef Wide type;
  static Wide of(C x) { return wide_of(x); }
};
template <>
struct TotalOf<int64_t> {
  typedef uint64_t type;
  static uint64_t of(int64_t x) { return static_cast<uint64_t>(x); }
};

// F maps an element to what is added.
template <typename C, typename F>
struct Add {
  typedef typename F::Total State;
  F f;
  static State start() { return F::zero(); }
  State with(State s, C x, int64_t) const { return s + f.of(x); }
  static State both(State a, State b) { return a + b; }
};
template <typename C>
struct Multiply {
  typedef typename TotalOf<C>::type State;
  static State start() { return TotalOf<C>::of(1); }
  State with(State s, C x, int64_t) const { return s * TotalOf<C>::of(x); }
  static State both(State a, State b) { return a * b; }
};
template <typename C>
struct Least {
  static C value() { return -INFINITY; }
};
template <>
struct Least<int64_t> {
  static int64_t value() { return kSmallest; }
};
template <typename C, bool kMost>
struct Extreme {
  typedef C State;
  static State start() { return kMost ? Least<C>::value() : infinity<C>(); }
  static State both(State a, State b) {
    return kMost ? scalar::maximum(a, b) : scalar::minimum(a, b);
  }
  State with(State s, C x, int64_t) const { return both(s, x); }
};
template <typename C, bool kEach>
struct Truth {
  typedef int32_t State;
  static State start() { return kEach; }
  static State both(State a, State b) { return kEach ? a & b : a | b; }
  State with(State s, C x, int64_t) const { return both(s, x != 0); }
};

// A value and its position; -1: none yet.
template <typename C>
struct Found {
  C value;
  int64_t at;
};
inline uint4 bits_of(Found<float> x) {
  return uint4(as_type<uint>(x.value), 0u, as_type<uint2>(x.at));
}
inline uint4 bits_of(Found<int64_t> x) {
  return uint4(as_type<uint2>(x.value), as_type<uint2>(x.at));
}
template <>
struct FromBits<Found<float>> {
  static Found<float> of(uint4 b) { return {as_type<float>(b.x), as_type<int64_t>(b.zw)}; }
};
template <>
struct FromBits<Found<int64_t>> {
  static Found<int64_t> of(uint4 b) { return {as_type<int64_t>(b.xy), as_type<int64_t>(b.zw)}; }
};
template <typename C, bool kMost>
struct Position {
  typedef Found<C> State;
  static State start() { return {C(0), -1}; }
  // Whether b comes before a; equal values by position.
  static bool wins(State b, State a) {
    if (b.at < 0 || a.at < 0) return a.at < 0;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return b_nan;
    if (a_nan || a.value == b.value) return b.at < a.at;
    return kMost ? b.value > a.value : b.value < a.value;
  }
  static State both(State a, State b) { return wins(b, a) ? b : a; }
  State with(State s, C x, int64_t at) const { return both(s, State{x, at}); }
};

// What is added: the number, its square, its magnitude; and of reals that number, its squared
// distance from a mean, its exponential.
template <typename C>
struct Itself {
  typedef typename TotalOf<C>::type Total;
  static Total zero() { return TotalOf<C>::of(0); }
  Total of(C x) const { return TotalOf<C>::of(x); }
};
template <typename C>
struct Square : Itself<C> {
  typedef typename TotalOf<C>::type Total;
  Total of(C x) const { return TotalOf<C>::of(x) * TotalOf<C>::of(x); }
};
template <typename C>
struct Magnitude : Itself<C> {
  typename TotalOf<C>::type of(C x) const { return TotalOf<C>::of(scalar::abs(x)); }
};
template <typename C>
struct Real {
  typedef Wide Total;
  static Wide zero() { return wide_of(0.0f); }
  Wide of(C x) const { return wide_of(x); }
};
template <typename C>
struct SquaredDistance {
  typedef Wide Total;
  Wide mean;
  static Wide zero() { return wide_of(0.0f); }
  Wide of(C x) const {
    const Wide distance = wide_of(x) + -mean;
    return distance * distance;
  }
};
template <typename C>
struct Exponential {
  typedef Wide Total;
  float from;
  static Wide zero() { return wide_of(0.0f); }
  Wide of(C x) const { return wide_of(scalar::exp(static_cast<float>(x) - from)); }
};

}  // namespace npusim
