// Reductions between any strides. NPUSIM_PARTS threads of a block share an output: each folds every
// NPUSIM_PARTS-th of its elements, and a tree in shared memory folds what they found; the order
// depends on the parameters alone. NPUSIM_ACROSS says whether neighbouring threads take
// neighbouring outputs (x is contiguous there) or neighbouring elements. Sums are in double; NaN
// wins extremes, and the first position wins ties. Elements convert to y's class first, as
// PyTorch's `dtype` argument has it; positions and truth are of x as it is.
#include "kernels/cuda/common/scalar_ops.h"

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

using X = Storage<params.x_dtype>;
using Y = Storage<params.y_dtype>;
constexpr int kOp = params.op;
constexpr bool kIsPosition = kOp == kArgmax || kOp == kArgmin;
constexpr bool kAsIs = kIsPosition || kOp == kAny || kOp == kAll;
using C = Compute<kAsIs ? params.x_dtype : params.y_dtype>;
constexpr bool kInteger = kSame<C, int64_t>;
constexpr bool kPacks = (kIsPosition || kOp == kMax || kOp == kMin) && params.reduced_rank == 1 &&
                        params.reduced_strides[0] == 1 && NPUSIM_ACROSS == 0 &&
                        (sizeof(X) == 2 || sizeof(X) == 4);

template <bool kWhole>
struct TotalOf {
  using type = double;
};
template <>
struct TotalOf<true> {
  using type = uint64_t;  // integers wrap
};
using Total = typename TotalOf<kInteger>::type;

constexpr int kParts = NPUSIM_PARTS, kOutputs = NPUSIM_BLOCK / kParts;

constexpr int64_t count_of(const int64_t* sizes, int rank) {
  int64_t count = 1;
  for (int d = 0; d < rank; ++d) count *= sizes[d];
  return count;
}
constexpr int64_t kCount = count_of(params.shape, params.rank);
constexpr int64_t kElements = count_of(params.reduced, params.reduced_rank);

// ---- folds: start(), with(state, element, position), both(a, b)

template <typename F>
struct Add {  // F maps an element to what is added
  F f;
  using State = Total;
  static State start() { return 0; }
  State with(State s, C x, int64_t) const { return s + static_cast<Total>(f(x)); }
  static State both(State a, State b) { return a + b; }
};
struct Multiply {
  using State = Total;
  static State start() { return 1; }
  State with(State s, C x, int64_t) const { return s * static_cast<Total>(x); }
  static State both(State a, State b) { return a * b; }
};
template <bool kMost>
struct Extreme {
  using State = C;
  static State start() {
    if constexpr (kInteger) return kMost ? kSmallest : kLargest;
    return kMost ? -kInfinity<C> : kInfinity<C>;
  }
  static State both(State a, State b) {
    return kMost ? scalar::maximum(a, b) : scalar::minimum(a, b);
  }
  State with(State s, C x, int64_t) const { return both(s, x); }
};
template <bool kEach>
struct Truth {
  using State = int32_t;
  static State start() { return kEach; }
  static State both(State a, State b) { return kEach ? a & b : a | b; }
  State with(State s, C x, int64_t) const { return both(s, x != 0); }
};
// Sums of distances from one of the elements, and of their squares. The variance is at least a
// number-of-elements-th of the largest square, whichever it is, so that little cancels in double.
struct Spread {
  double center;
  struct State {
    double sum, squares;
  };
  static State start() { return {0, 0}; }
  State with(const State& s, C x, int64_t) const {
    const double distance = static_cast<double>(x) - center;
    return {s.sum + distance, s.squares + distance * distance};
  }
  static State both(const State& a, const State& b) {
    return {a.sum + b.sum, a.squares + b.squares};
  }
};
// The sum of exponentials, of distances from the largest element so far. A template, so that an
// integer's are never compiled.
template <typename T>
struct Exponentials {
  struct State {
    T max;
    double sum;
  };
  static State start() { return {-kInfinity<T>, 0}; }
  State with(const State& s, T x, int64_t) const {
    if (x == s.max) return {x, s.sum + 1};
    if (x < s.max) return {s.max, s.sum + scalar::exp(x - s.max)};
    return both({x, 1}, s);
  }
  // What is NaN makes all NaN; equal infinities are no distance apart.
  static State both(const State& a, const State& b) {
    if (a.max == b.max) return {a.max, a.sum + b.sum};
    const bool first = !(a.max < b.max);
    const State& from = first ? a : b;
    const State& other = first ? b : a;
    const double distance = static_cast<double>(other.max) - static_cast<double>(from.max);
    return {from.max, from.sum + other.sum * ::exp(distance)};
  }
};
template <bool kMost>
struct Position {
  struct State {
    C value;
    int64_t at;  // -1: none yet
  };
  static State start() { return {C{}, -1}; }
  // Whether b comes before a; equal values by position.
  static bool wins(const State& b, const State& a) {
    if (b.at < 0 || a.at < 0) return a.at < 0;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return b_nan;
    if (a_nan || a.value == b.value) return b.at < a.at;
    return kMost ? b.value > a.value : b.value < a.value;
  }
  static State both(const State& a, const State& b) { return wins(b, a) ? b : a; }
  // For an element behind those that `s` was made of.
  State with(const State& s, C x, int64_t at) const {
    const bool is_new = s.at < 0 || (kMost ? x > s.value : x < s.value);
    const bool is_first_nan = x != x && s.value == s.value;
    return is_new || is_first_nan ? State{x, at} : s;
  }
};

// ---- one output

// The threads that share an output: each has a part, and a slot in shared memory.
struct Team {
  int part;
  int slot;
  bool valid;  // threads beyond the last output only keep step

  // Folds what the threads hold; all of them get the result.
  template <int kShared, int kStep, typename F>
  typename F::State fold(typename F::State state) const {
    using State = typename F::State;
    if constexpr (kShared == 1) return state;
    __shared__ State states[NPUSIM_BLOCK];
    __syncthreads();
    states[slot] = state;
    for (int width = kShared / 2; width > 0; width /= 2) {
      __syncthreads();
      if (part < width) states[slot] = F::both(states[slot], states[slot + width * kStep]);
    }
    __syncthreads();
    return states[slot - part * kStep];
  }
};

struct Task {
  const X* x;
  Team team;
  int64_t begin, end;  // elements of the output that the team folds

  C element(int64_t i) const {
    int64_t at = 0;
#pragma unroll
    for (int d = params.reduced_rank - 1; d >= 0; --d) {
      at += i % params.reduced[d] * params.reduced_strides[d];
      i /= params.reduced[d];
    }
    return decode<C>(x[at]);
  }

  // Packs of neighbours of a row; returns where they end. No sums: where a row lies would change
  // their order.
  template <typename F>
  int64_t fold_packs(const F& f, typename F::State& state) const {
    constexpr int kPack = 16 / static_cast<int>(sizeof(X));
    if (!kPacks || reinterpret_cast<uint64_t>(x + begin) % 16 != 0) return begin;
    const int64_t last = begin + (end - begin) / kPack * kPack;
#pragma unroll 4
    for (int64_t i = begin + team.part * kPack; i < last; i += kParts * kPack) {
      alignas(16) X pack[kPack];
      *reinterpret_cast<uint4*>(pack) = *reinterpret_cast<const uint4*>(x + i);
#pragma unroll
      for (int e = 0; e < kPack; ++e) state = f.with(state, decode<C>(pack[e]), i + e);
    }
    return last;
  }

  template <typename F>
  typename F::State fold(const F& f) const {
    typename F::State state = F::start();
    if (team.valid && begin < end) {
      const int64_t first = fold_packs(f, state);
#pragma unroll 4
      for (int64_t i = first + team.part; i < end; i += kParts)
        state = f.with(state, element(i), i);
    }
    return team.template fold<kParts, NPUSIM_ACROSS ? kOutputs : 1, F>(state);
  }
};

inline auto finish(Total total) {
  if constexpr (kInteger) {
    return static_cast<int64_t>(total);
  } else {
    return total;
  }
}

// ---- what folds, and what the result is

constexpr bool kAdds = kOp == kSum || kOp == kMean;
constexpr bool kSquares = kOp == kSumSquares || kOp == kL2Norm;
constexpr bool kSpreads = kOp == kVar || kOp == kStd;

struct Itself {
  C operator()(C x) const { return x; }
};
struct Square {
  Total operator()(C x) const { return static_cast<Total>(x) * static_cast<Total>(x); }
};
struct Magnitude {
  C operator()(C x) const { return scalar::abs(x); }
};

inline auto fold_of_op(const Task& task) {
  if constexpr (kAdds) return Add<Itself>{};
  if constexpr (kSquares) return Add<Square>{};
  if constexpr (kOp == kSumMagnitudes) return Add<Magnitude>{};
  if constexpr (kOp == kMax || kOp == kMin) return Extreme<kOp == kMax>{};
  if constexpr (kOp == kProd) return Multiply{};
  if constexpr (kOp == kAny || kOp == kAll) return Truth<kOp == kAll>{};
  if constexpr (kIsPosition) return Position<kOp == kArgmax>{};
  if constexpr (kOp == kLogSumExp) return Exponentials<C>{};
  if constexpr (kSpreads) return Spread{kElements > 0 ? static_cast<double>(task.element(0)) : 0};
}
// Of n elements; NaN where they are too few.
inline double variance_of(double sum, double squares) {
  constexpr double n = static_cast<double>(kElements);
  constexpr double divisor = n > params.correction ? n - params.correction : 0;
  const double left = squares - sum * sum / n;
  return (left < 0 ? 0 : left) / divisor;
}
template <typename State>
inline auto result_of(const State& state) {
  if constexpr (kIsPosition) {
    return state.at < 0 ? int64_t{0} : state.at;
  } else if constexpr (kOp == kMean && kInteger) {
    return kElements > 0 ? finish(state) / kElements : int64_t{0};
  } else if constexpr (kOp == kMean) {
    return state / static_cast<double>(kElements);
  } else if constexpr (kOp == kL2Norm) {
    return ::sqrt(static_cast<double>(state));
  } else if constexpr (kOp == kAny || kOp == kAll) {
    return static_cast<int64_t>(state);
  } else if constexpr (kOp == kVar) {
    return variance_of(state.sum, state.squares);
  } else if constexpr (kOp == kStd) {
    return ::sqrt(variance_of(state.sum, state.squares));
  } else if constexpr (kOp == kLogSumExp) {
    return static_cast<double>(state.max) + ::log(state.sum);
  } else if constexpr (kAdds || kSquares || kOp == kProd || kOp == kSumMagnitudes) {
    return finish(state);
  } else {
    return state;
  }
}

// Offsets of output `item`.
struct Place {
  int64_t x = 0, y = 0;
};
inline Place place_of(int64_t item) {
  Place at;
#pragma unroll
  for (int d = params.rank - 1; d >= 0; --d) {
    const int64_t index = item % params.shape[d];
    item /= params.shape[d];
    at.x += index * params.x_strides[d];
    at.y += index * params.y_strides[d];
  }
  return at;
}

// What a thread does for an output; the first of its team tells the result.
struct Share {
  Task task;
  int64_t item;
  bool tells;
};
inline Share share_of(const void* x, int64_t block, int64_t begin, int64_t end) {
  const int thread = threadIdx.x;
  const int output = NPUSIM_ACROSS ? thread % kOutputs : thread / kParts;
  const int part = NPUSIM_ACROSS ? thread / kOutputs : thread % kParts;
  const int64_t item = block * kOutputs + output;
  const bool valid = item < kCount;
  const X* own = static_cast<const X*>(x) + place_of(valid ? item : 0).x;
  return {{own, {part, thread, valid}, begin, end}, item, valid && part == 0};
}

}  // namespace npusim

#if NPUSIM_SPLIT == 1
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(const void* x, void* y) {
  using namespace npusim;
  const Share share = share_of(x, blockIdx.x, 0, kElements);
  const auto result = result_of(share.task.fold(fold_of_op(share.task)));
  if (share.tells) static_cast<Y*>(y)[place_of(share.item).y] = encode<Y>(result);
}
#else
// Few outputs of many elements: blocks take NPUSIM_SPLIT spans of each, a second launch folds what
// they found.
namespace npusim {
using Fold = decltype(fold_of_op(*static_cast<const Task*>(nullptr)));
constexpr int64_t kSliceK = (kElements + NPUSIM_SPLIT * 16 - 1) / (NPUSIM_SPLIT * 16) * 16;
}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void*, void* scratch) {
  using namespace npusim;
  const int64_t slice = blockIdx.x % NPUSIM_SPLIT;
  const int64_t begin = slice * kSliceK, end = begin + kSliceK;
  const Share share =
      share_of(x, blockIdx.x / NPUSIM_SPLIT, begin, end < kElements ? end : kElements);
  const auto state = share.task.fold(fold_of_op(share.task));
  if (share.tells) {
    static_cast<Fold::State*>(scratch)[share.item * NPUSIM_SPLIT + slice] = state;
  }
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_combine(const void*, void* y, void* scratch) {
  using namespace npusim;
  const int thread = threadIdx.x;
  const auto* states = static_cast<const Fold::State*>(scratch) + blockIdx.x * NPUSIM_SPLIT;
  Fold::State state = Fold::start();
  for (int i = thread; i < NPUSIM_SPLIT; i += NPUSIM_BLOCK) state = Fold::both(state, states[i]);
  state = Team{thread, thread, true}.fold<NPUSIM_BLOCK, 1, Fold>(state);
  if (thread == 0) static_cast<Y*>(y)[place_of(blockIdx.x).y] = encode<Y>(result_of(state));
}
#endif
