// Reductions between any strides. NPUSIM_PARTS threads of a threadgroup share an output: each folds
// every NPUSIM_PARTS-th of its elements, and a tree folds what they found; the order depends on the
// parameters alone. NPUSIM_ACROSS says whether neighbouring threads take neighbouring outputs (x is
// contiguous there) or neighbouring elements. NaN wins extremes, and the first position wins ties.
// Elements convert to y's class first, as PyTorch's `dtype` argument has it; positions and truth
// are of x as it is.
#include "kernels/metal/rows/reduce_fold.h"

namespace npusim {

enum Op : int32_t {
  kSum,
  kMean,
  kMax,
  kMin,
  kProd,
  kAny,
  kAll,
  kArgmax,
  kArgmin,
  kVar,
  kStd,
  kSumSquares,
  kL2Norm,
  kSumMagnitudes,
  kLogSumExp
};

typedef Storage<params.x_dtype> X;
typedef Storage<params.y_dtype> Y;
constant constexpr int kOp = params.op;
constant constexpr bool kAsIs = kOp == kArgmax || kOp == kArgmin || kOp == kAny || kOp == kAll;
typedef Compute<(kAsIs ? params.x_dtype : params.y_dtype)> C;
constant constexpr int kParts = NPUSIM_PARTS;
constant constexpr int kOutputs = NPUSIM_BLOCK / kParts;
constant constexpr int kLanes = kParts < 32 ? kParts : 32;
constant constexpr int kSlots = NPUSIM_ACROSS ? NPUSIM_BLOCK : NPUSIM_BLOCK / 32;

inline int64_t elements() {
  int64_t count = 1;
  for (int d = 0; d < params.reduced_rank; ++d) count *= params.reduced[d];
  return count;
}
inline int64_t outputs() {
  int64_t count = 1;
  for (int d = 0; d < params.rank; ++d) count *= params.shape[d];
  return count;
}

// ---- one output

inline void meet() {
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// What the threads that share an output fold: its elements from `begin` to `end`.
struct Task {
  device const X* x;
  threadgroup uint4* room;  // kSlots
  int thread_index;
  int part;
  bool valid;  // threads beyond the last output only keep step
  int64_t begin, end;

  C element(int64_t i) const {
    int64_t at = 0;
#pragma unroll
    for (int d = params.reduced_rank - 1; d >= 0; --d) {
      at += i % params.reduced[d] * params.reduced_strides[d];
      i /= params.reduced[d];
    }
    return decode<C>(x[at]);
  }
  template <typename F>
  typename F::State fold(F f) const {
    typename F::State state = F::start();
    if (valid) {
      for (int64_t i = begin + part; i < end; i += kParts) state = f.with(state, element(i), i);
    }
    return NPUSIM_ACROSS ? spread<F>(state) : neighbours<F>(state);
  }
  // Folds what the threads hold; all that share the output get the result.
  template <typename F>
  typename F::State neighbours(typename F::State state) const {
    typedef FromBits<typename F::State> From;
#pragma unroll
    for (ushort step = kLanes / 2; step > 0; step /= 2) {
      state = F::both(state, From::of(metal::simd_shuffle_xor(bits_of(state), step)));
    }
    if (kParts <= 32) return state;
    meet();  // what an earlier fold left was read
    if (thread_index % 32 == 0) room[thread_index / 32] = bits_of(state);
    meet();
    const int first = thread_index / kParts * (kParts / 32);
    state = From::of(room[first]);
    for (int i = 1; i < kParts / 32; ++i) state = F::both(state, From::of(room[first + i]));
    return state;
  }
  template <typename F>
  typename F::State spread(typename F::State state) const {
    typedef FromBits<typename F::State> From;
    if (kParts == 1) return state;
    meet();
    room[thread_index] = bits_of(state);
    for (int width = kParts / 2; width > 0; width /= 2) {
      meet();
      if (part < width) {
        const uint4 other = room[thread_index + width * kOutputs];
        room[thread_index] = bits_of(F::both(From::of(room[thread_index]), From::of(other)));
      }
    }
    meet();
    return From::of(room[thread_index - part * kOutputs]);
  }
};

// ---- by op: what folds, and what the result is, a float or an integer

inline float number_of(Wide x) {
  return float_of(x);
}
inline int64_t number_of(uint64_t x) {
  return static_cast<int64_t>(x);
}
inline float mean_of(Wide sum) {
  return float_of(sum / wide_of(elements()));
}
inline int64_t mean_of(uint64_t sum) {
  const int64_t count = elements();
  return count > 0 ? static_cast<int64_t>(sum) / count : 0;
}
inline float length_of(Wide squares) {
  return root_of(squares);
}
inline int64_t length_of(uint64_t) {
  return 0;  // the norm of integers is a float
}

template <typename F>
struct OnePass {
  typedef F Fold;
};
template <int kOf>
struct Reduction : OnePass<Add<C, Itself<C>>> {
  static C result(typename TotalOf<C>::type s) { return number_of(s); }
};
template <>
struct Reduction<kMean> : OnePass<Add<C, Itself<C>>> {
  static C result(TotalOf<C>::type s) { return mean_of(s); }
};
template <>
struct Reduction<kMax> : OnePass<Extreme<C, true>> {
  static C result(C s) { return s; }
};
template <>
struct Reduction<kMin> : OnePass<Extreme<C, false>> {
  static C result(C s) { return s; }
};
template <>
struct Reduction<kProd> : OnePass<Multiply<C>> {
  static C result(TotalOf<C>::type s) { return number_of(s); }
};
template <>
struct Reduction<kAny> : OnePass<Truth<C, false>> {
  static int64_t result(int32_t s) { return s; }
};
template <>
struct Reduction<kAll> : OnePass<Truth<C, true>> {
  static int64_t result(int32_t s) { return s; }
};
template <>
struct Reduction<kArgmax> : OnePass<Position<C, true>> {
  static int64_t result(Found<C> s) { return s.at < 0 ? 0 : s.at; }
};
template <>
struct Reduction<kArgmin> : OnePass<Position<C, false>> {
  static int64_t result(Found<C> s) { return s.at < 0 ? 0 : s.at; }
};
template <>
struct Reduction<kSumSquares> : OnePass<Add<C, Square<C>>> {
  static C result(TotalOf<C>::type s) { return number_of(s); }
};
template <>
struct Reduction<kL2Norm> : OnePass<Add<C, Square<C>>> {
  static C result(TotalOf<C>::type s) { return length_of(s); }
};
template <>
struct Reduction<kSumMagnitudes> : OnePass<Add<C, Magnitude<C>>> {
  static C result(TotalOf<C>::type s) { return number_of(s); }
};

inline Wide variance_of(thread const Task& task) {
  const Wide n = wide_of(elements());
  const Add<C, Real<C>> sum = {};
  const Add<C, SquaredDistance<C>> squares = {{task.fold(sum) / n}};
  const float count = static_cast<float>(elements());
  const float divisor = count > params.correction ? count - params.correction : 0.0f;
  return task.fold(squares) / wide_of(divisor);
}
inline float log_sum_exp_of(thread const Task& task) {
  const float max = static_cast<float>(task.fold(Extreme<C, true>()));
  const float center = max - max == 0.0f ? max : 0.0f;  // an infinite one would leave NaN
  const Add<C, Exponential<C>> sum = {{center}};
  return scalar::log(float_of(task.fold(sum))) + center;
}

template <int kOf>
struct Reduced {
  static auto of(thread const Task& task) {
    typedef Reduction<kOf> R;
    const typename R::Fold fold = {};
    return R::result(task.fold(fold));
  }
};
template <>
struct Reduced<kVar> {
  static float of(thread const Task& task) { return float_of(variance_of(task)); }
};
template <>
struct Reduced<kStd> {
  static float of(thread const Task& task) { return root_of(variance_of(task)); }
};
template <>
struct Reduced<kLogSumExp> {
  static float of(thread const Task& task) { return log_sum_exp_of(task); }
};

// Offsets of output `item`.
struct Place {
  int64_t x, y;
};
inline Place place_of(int64_t item) {
  Place at = {0, 0};
#pragma unroll
  for (int d = params.rank - 1; d >= 0; --d) {
    const int64_t index = item % params.shape[d];
    item /= params.shape[d];
    at.x += index * params.x_strides[d];
    at.y += index * params.y_strides[d];
  }
  return at;
}

}  // namespace npusim

using namespace npusim;
#if NPUSIM_SPLIT == 1
[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    device const X* x [[buffer(0)]], device Y* y [[buffer(1)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  threadgroup uint4 room[kSlots];
  const int index = static_cast<int>(thread_of_group);
  const int output = NPUSIM_ACROSS ? index % kOutputs : index / kParts;
  const int part = NPUSIM_ACROSS ? index / kOutputs : index % kParts;
  const int64_t item = static_cast<int64_t>(group) * kOutputs + output;
  const bool valid = item < outputs();
  const Place at = place_of(valid ? item : 0);
  const Task task = {x + at.x, room, index, part, valid, 0, elements()};
  const auto result = Reduced<kOp>::of(task);
  if (valid && part == 0) y[at.y] = encode<Y>(result);
}
#else
// Few outputs of many elements: threadgroups take NPUSIM_SPLIT spans of each, a second launch folds
// what they found.
namespace npusim {
typedef Reduction<kOp>::Fold Fold;
}  // namespace npusim

[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    device const X* x [[buffer(0)]], device uint4* states [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  threadgroup uint4 room[kSlots];
  const int index = static_cast<int>(thread_of_group);
  const Place at = place_of(group / NPUSIM_SPLIT);
  const int64_t span = (elements() + NPUSIM_SPLIT - 1) / NPUSIM_SPLIT;
  const int64_t begin = group % NPUSIM_SPLIT * span, rest = elements() - begin;
  const Task task = {
      x + at.x, room, index, index, true, begin, begin + (span < rest ? span : rest)};
  const Fold fold = {};
  const Fold::State state = task.fold(fold);
  if (index == 0) states[group] = bits_of(state);
}

[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_combine(
    device Y* y [[buffer(1)]], device const uint4* states [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  threadgroup uint4 room[kSlots];
  const int index = static_cast<int>(thread_of_group);
  device const uint4* own = states + static_cast<int64_t>(group) * NPUSIM_SPLIT;
  Fold::State state = Fold::start();
  for (int i = index; i < NPUSIM_SPLIT; i += NPUSIM_BLOCK)
    state = Fold::both(state, FromBits<Fold::State>::of(own[i]));
  const Task task = {nullptr, room, index, index, true, 0, 0};
  state = task.neighbours<Fold>(state);
  if (index == 0) y[place_of(group).y] = encode<Y>(Reduction<kOp>::result(state));
}
#endif
