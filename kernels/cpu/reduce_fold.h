// The folds that reductions are made of: a running value, how a run of elements enters it, and how
// a row of elements enters a row of running values. Owns their numerics: sums in double (floats in
// short blocks first, see accumulate.h), NaN winning extremes, first positions winning ties.
#pragma once

#include "kernels/cpu/accumulate.h"
#include "kernels/cpu/scalar_ops.h"

namespace npusim::cpu::NPUSIM_ISA {

// What a sum adds up: f(x, p) with one parameter an output (a mean, a maximum). For numbers of
// class C and packs of them.
struct Itself {
  template <typename V>
  V operator()(V v, V) const {
    return v;
  }
};
struct Square {
  template <typename V>
  V operator()(V v, V) const {
    return v * v;
  }
};
struct Magnitude {
  template <typename V>
  V operator()(V v, V) const {
    return v < V{} ? -v : v;
  }
};
struct Distance {
  template <typename V>
  V operator()(V v, V mean) const {
    return v - mean;
  }
};
struct SquaredDistance {
  template <typename V>
  V operator()(V v, V mean) const {
    return (v - mean) * (v - mean);
  }
};
struct Exponential {
  Vec operator()(Vec v, Vec max) const { return exp(v - max); }
  float operator()(float v, float max) const { return __builtin_expf(v - max); }
  double operator()(double v, double max) const { return __builtin_exp(v - max); }
  template <typename V>
  V operator()(V v, V max) const {
    for (int i = 0; i < Pack<double>::size; ++i) v[i] = __builtin_exp(v[i] - max[i]);
    return v;
  }
};

template <typename C, typename F>
struct Sum {
  using State = typename TotalOf<C>::type;
  static State start() { return {}; }
  static void run(State& state, const C* x, int64_t n, C parameter, int64_t) {
    using V = typename Pack<C>::type;
    const V p = V{} + parameter;
    state += accumulate(x, n, [=](V v) { return F{}(v, p); });
  }
  static void row(State* states, const C* x, int64_t n, const C* parameters, int64_t) {
    for (int64_t i = 0; i < n; ++i) states[i] += static_cast<State>(F{}(x[i], parameters[i]));
  }
};
// Unsigned, so that integers wrap; the sums of floats lose nothing by it.
template <typename F>
struct Sum<int64_t, F> {
  using State = uint64_t;
  static State start() { return 0; }
  static void run(State& state, const int64_t* x, int64_t n, int64_t, int64_t) {
    for (int64_t i = 0; i < n; ++i) state += F{}(to_unsigned(x[i]), State{});
  }
  static void row(State* states, const int64_t* x, int64_t n, const int64_t*, int64_t) {
    for (int64_t i = 0; i < n; ++i) states[i] += F{}(to_unsigned(x[i]), State{});
  }
};
template <>
struct Sum<int64_t, Magnitude> {
  using State = uint64_t;
  static State start() { return 0; }
  static State value(int64_t x) { return x < 0 ? 0 - to_unsigned(x) : to_unsigned(x); }
  static void run(State& state, const int64_t* x, int64_t n, int64_t, int64_t) {
    for (int64_t i = 0; i < n; ++i) state += value(x[i]);
  }
  static void row(State* states, const int64_t* x, int64_t n, const int64_t*, int64_t) {
    for (int64_t i = 0; i < n; ++i) states[i] += value(x[i]);
  }
};

// A fold by a function of two numbers, one element after another.
template <typename C, typename S, typename F>
struct Each {
  using State = S;
  static State start() { return F::kStart; }
  static void run(State& state, const C* x, int64_t n, C, int64_t) {
    State value = state;
    for (int64_t i = 0; i < n; ++i) value = F::combine(value, x[i]);
    state = value;
  }
  static void row(State* states, const C* x, int64_t n, const C*, int64_t) {
    for (int64_t i = 0; i < n; ++i) states[i] = F::combine(states[i], x[i]);
  }
};
struct Product {
  static constexpr int kStart = 1;
  static double combine(double state, double x) { return state * x; }
  static uint64_t combine(uint64_t state, int64_t x) { return state * to_unsigned(x); }
};
struct AnyTrue {
  static constexpr int kStart = 0;
  template <typename C>
  static int64_t combine(int64_t state, C x) {
    return state | (x != 0);
  }
};
struct AllTrue {
  static constexpr int kStart = 1;
  template <typename C>
  static int64_t combine(int64_t state, C x) {
    return state & (x != 0);
  }
};

template <int kSign, typename C>
constexpr C extreme_start() {
  if constexpr (__is_same(C, int64_t)) return kSign > 0 ? INT64_MIN : INT64_MAX;
  return static_cast<C>(kSign > 0 ? -kInfinity : kInfinity);
}
template <int kSign, typename C>
struct Extreme {
  using State = C;
  static State start() { return extreme_start<kSign, C>(); }
  static void run(State& state, const C* x, int64_t n, C, int64_t) {
    if (n > 0) state = extreme<kSign>(state, extreme_of<kSign>(x, n));
  }
  static void row(State* states, const C* x, int64_t n, const C*, int64_t) {
    for (int64_t i = 0; i < n; ++i) states[i] = extreme<kSign>(states[i], x[i]);
  }
};

// The first position of an extreme; `position` is that of the run's or the row's first element.
template <int kSign, typename C>
struct ArgExtreme {
  struct State {
    C value;
    int64_t at;
  };
  static State start() { return {extreme_start<kSign, C>(), -1}; }
  static bool wins(C x, const State& state) {
    if (state.at < 0) return true;
    if (state.value != state.value) return false;
    return x != x || (kSign > 0 ? x > state.value : x < state.value);
  }
  static void run(State& state, const C* x, int64_t n, C, int64_t position) {
    if (n == 0) return;
    const C best = extreme_of<kSign>(x, n);
    if (!wins(best, state)) return;
    int64_t i = 0;
    while (!(x[i] == best || (best != best && x[i] != x[i]))) ++i;
    state = {best, position + i};
  }
  static void row(State* states, const C* x, int64_t n, const C*, int64_t position) {
    for (int64_t i = 0; i < n; ++i) {
      if (wins(x[i], states[i])) states[i] = {x[i], position};
    }
  }
};

}  // namespace npusim::cpu::NPUSIM_ISA
