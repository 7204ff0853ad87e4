// Inclusive scan along the middle of a dense [outer, size, inner]. NPUSIM_LANES is 1 where a thread
// scans a lane front to back, or the threadgroup's size where one scans it in pieces: within SIMD
// groups, then over these, then over the pieces; the order depends on the parameters alone. Reals
// are wide numbers on the way. y may be x's memory if the dtypes are equal.
#include "kernels/metal/common/threads.h"

namespace npusim {

enum Op : int32_t { kSum, kProd, kMax, kMin, kLogSumExp };

typedef Storage<params.x_dtype> X;
typedef Storage<params.y_dtype> Y;

// The running value: wide, or an integer where y is one.
template <typename To>
struct StateOf {
  typedef Wide type;
  static Wide least() { return wide_of(-INFINITY); }
  static Wide most() { return wide_of(INFINITY); }
  static Wide of(float x) { return wide_of(x); }
  static Wide of(int64_t x) { return wide_of(x); }
  static float number(Wide x) { return float_of(x); }
};
template <>
struct StateOf<int64_t> {
  typedef int64_t type;
  static int64_t least() { return kSmallest; }
  static int64_t most() { return kLargest; }
  static int64_t of(float x) { return to_integer(x); }
  static int64_t of(int64_t x) { return x; }
  static int64_t number(int64_t x) { return x; }
};
typedef StateOf<Compute<params.y_dtype>> States;
typedef States::type State;

inline State decoded(X x) {
  return States::of(decode<Compute<params.x_dtype>>(x));
}
inline bool is_less(Wide a, Wide b) {  // false where one is NaN, or both are the same infinity
  return (a + -b).high < 0.0f;
}
inline bool is_nan(Wide x) {
  return x.high != x.high;
}
// NaN wins; of two equal numbers the first.
inline Wide larger(Wide a, Wide b) {
  return is_nan(b) || is_less(a, b) ? b : a;
}
inline Wide smaller(Wide a, Wide b) {
  return is_nan(b) || is_less(b, a) ? b : a;
}
inline Wide log_add_exp(Wide a, Wide b) {
  if (is_nan(a) || is_nan(b)) return a + b;
  const Wide high = is_less(a, b) ? b : a, low = is_less(a, b) ? a : b;
  if (high.scale == kInfiniteScale || low.scale == kInfiniteScale) return high;
  return high + wide_of(scalar::log1p(scalar::exp(float_of(low + -high))));
}

inline Wide combine(Wide a, Wide x) {
  if (params.op == kSum) return a + x;
  if (params.op == kProd) return a * x;
  if (params.op == kMax) return larger(a, x);
  return params.op == kMin ? smaller(a, x) : log_add_exp(a, x);
}
inline int64_t combine(int64_t a, int64_t x) {
  if (params.op == kSum) return scalar::add(a, x);
  if (params.op == kProd) return scalar::mul(a, x);
  return params.op == kMax ? scalar::maximum(a, x) : scalar::minimum(a, x);
}
// What changes nothing it is combined with.
inline State neutral() {
  if (params.op == kSum) return States::of(int64_t(0));
  if (params.op == kProd) return States::of(int64_t(1));
  return params.op == kMin ? States::most() : States::least();
}

inline void scan_lane(device const X* x, device Y* y) {
  State state = decoded(x[0]);
  y[0] = encode<Y>(States::number(state));
  for (int64_t i = 1; i < params.size; ++i) {
    state = combine(state, decoded(x[i * params.inner]));
    y[i * params.inner] = encode<Y>(States::number(state));
  }
}

inline void scan_together(device const X* x, device Y* y, threadgroup State* totals,
                          uint thread_index) {
  constexpr int kGroups = NPUSIM_BLOCK / 32;
  const int lane = thread_index % 32, own = thread_index / 32;
  State before = neutral();
  for (int64_t first = 0; first < params.size; first += NPUSIM_BLOCK) {
    const int64_t i = first + thread_index;
    State value = i < params.size ? decoded(x[i * params.inner]) : neutral();
#pragma unroll
    for (ushort step = 1; step < 32; step *= 2) {
      const State left = lane_below(value, step);
      if (lane >= step) value = combine(left, value);
    }
    if (lane == 31) put(totals + own, value);
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    State carry = before;
    for (int g = 0; g < kGroups; ++g) {
      if (g == own && i < params.size)
        y[i * params.inner] = encode<Y>(States::number(combine(carry, value)));
      carry = combine(carry, get(totals + g));
    }
    before = carry;
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
}

}  // namespace npusim

using namespace npusim;
[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    device const X* x [[buffer(0)]], device Y* y [[buffer(1)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
#if NPUSIM_LANES > 1
  threadgroup State totals[NPUSIM_BLOCK / 32];
#endif
  const int64_t lane =
      (static_cast<int64_t>(group) * NPUSIM_BLOCK + thread_of_group) / NPUSIM_LANES;
  if (lane >= params.outer * params.inner) return;
  const int64_t at = lane / params.inner * params.size * params.inner + lane % params.inner;
#if NPUSIM_LANES > 1
  scan_together(x + at, y + at, totals, thread_of_group);
#else
  scan_lane(x + at, y + at);
#endif
}
