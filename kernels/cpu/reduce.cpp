// Reductions between any strides. An output dimension with a smaller stride than the innermost
// reduced one (channels-last pooling, sums over rows) is walked side by side: rows of elements
// enter rows of running values; so are runs that fill no vector (distances of points). Elsewhere
// each output takes the runs of its own elements. Elements convert to y's dtype first, as PyTorch's
// `dtype` argument has it; positions and truth to x's.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/reduce_fold.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ReduceParams;

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
  kLogSumExp,
  kOps
};

constexpr int64_t kWidth = 256;   // outputs of a strip at most
constexpr int64_t kPiece = 1024;  // elements of a run converted at a time
constexpr int64_t kTaskElements = 32768;

struct Dim {
  int64_t size, x, y;  // strides in elements
};

// Dimensions in order, those of size 1 dropped and neighbours merged.
struct Dims {
  int rank = 0;
  Dim dims[abi::kRank];
  int64_t count = 1;

  void add(Dim next) {
    count *= next.size;
    if (next.size == 1) return;
    Dim* last = rank ? &dims[rank - 1] : nullptr;
    if (last && last->x == next.x * next.size && last->y == next.y * next.size) {
      *last = {last->size * next.size, next.x, next.y};
    } else {
      dims[rank++] = next;
    }
  }
  // Puts a dimension of at least `size` elements last that is nearer in x than `distance`, unless
  // the last one is. The order of outputs is free.
  void bring_near(int64_t distance, int64_t size) {
    const auto is_near = [=](const Dim& d) {
      return d.size >= size && (d.x < 0 ? -d.x : d.x) < distance;
    };
    if (rank == 0 || is_near(dims[rank - 1])) return;
    Dim* const near = std::find_if(dims, dims + rank, is_near);
    if (near != dims + rank) std::rotate(near, near + 1, dims + rank);
  }
  // Removes and returns the last dimension; one of size 1 when there is none.
  Dim pop() { return rank ? dims[--rank] : Dim{1, 0, 0}; }
};

// Offsets of item `i` of the dimensions, in row-major order.
struct Offsets {
  int64_t x = 0, y = 0;
};
Offsets locate(const Dims& dims, int64_t i) {
  Offsets at;
  for (int d = dims.rank - 1; d >= 0; --d) {
    const int64_t index = i % dims.dims[d].size;
    i /= dims.dims[d].size;
    at.x += index * dims.dims[d].x;
    at.y += index * dims.dims[d].y;
  }
  return at;
}

struct Plan {
  Dims kept, reduced;  // without the innermost below
  Dim kept_inner, reduced_inner;
  int64_t elements;  // of one output
  bool side_by_side;
  int64_t width;      // outputs of a strip
  int64_t items = 0;  // strips
  int64_t per_task = 1;
};

int64_t magnitude(int64_t x) {
  return x < 0 ? -x : x;
}

bool is_position(int32_t op) {
  return op == kArgmax || op == kArgmin;
}

// Truth and positions are of x as it is; numbers are added up in y's class.
int32_t class_of(const Params& p) {
  const bool as_is = is_position(p.op) || p.op == kAny || p.op == kAll;
  return compute_class(as_is ? p.x_dtype : p.y_dtype);
}

// Whether an output's elements are one run that fills no vector: walked either way they enter the
// same sum one after another. Not for exponentials, whose vectors and numbers round differently.
bool is_short(const Params& p, const Plan& plan) {
  const int64_t lanes = class_of(p) == kClassF ? kLanes : kLanes / 2;
  return plan.elements == plan.reduced_inner.size && plan.elements < lanes && p.op != kLogSumExp;
}

Plan make_plan(const Params& p) {
  Plan plan{};
  bool none = false;
  for (int d = 0; d < p.reduced_rank; ++d) none |= p.reduced[d] == 0;
  for (int d = 0; d < p.rank; ++d) {
    if (p.shape[d] == 0) return plan;
    plan.kept.add({p.shape[d], none ? 0 : p.x_strides[d], p.y_strides[d]});
  }
  for (int d = 0; !none && d < p.reduced_rank; ++d)
    plan.reduced.add({p.reduced[d], p.reduced_strides[d], 0});
  plan.elements = none ? 0 : plan.reduced.count;
  plan.reduced_inner = none ? Dim{0, 0, 0} : plan.reduced.pop();
  constexpr int64_t kSideBySide = 4;  // outputs at least
  plan.kept.bring_near(magnitude(plan.reduced_inner.x), kSideBySide);
  plan.kept_inner = plan.kept.pop();
  const Dim &out = plan.kept_inner, &in = plan.reduced_inner;
  plan.side_by_side =
      out.size >= kSideBySide && (magnitude(out.x) < magnitude(in.x) || is_short(p, plan));
  // One by one, as many as make a task together: what a strip costs beside its elements is shared.
  const int64_t together = kTaskElements / (plan.elements + 1);
  plan.width = plan.side_by_side ? kWidth : std::clamp<int64_t>(together, 1, kWidth);
  const int64_t strips = (out.size - 1) / plan.width + 1;
  plan.items = plan.kept.count / out.size * strips;
  const int64_t most = out.size < plan.width ? out.size : plan.width;
  const int64_t work = plan.elements < kTaskElements ? plan.elements * most + 1 : kTaskElements;
  plan.per_task = work < kTaskElements ? kTaskElements / work : 1;
  return plan;
}

// Outputs [0, n) of one strip: where their first elements and they themselves are.
struct Strip {
  const std::byte* x;
  int64_t y;  // offset in elements
  int64_t n;
};

// Whether elements of a dtype are numbers of class C as they stand.
template <typename C>
bool is_native(int32_t dtype) {
  return with_storage(dtype, [](auto type) { return __is_same(decltype(type), C); });
}

// The elements at x as numbers: in place where they are, else in `room`. On its own, as a copy of
// all conversions in every fold would be most of the code.
template <typename C>
[[gnu::noinline]] const C* numbers_at(int32_t dtype, const std::byte* x, int64_t stride, int64_t n,
                                      C* room) {
  if (stride == 1 && is_native<C>(dtype)) return reinterpret_cast<const C*>(x);
  decode_run(dtype, x, stride, n, room);
  return room;
}
template <typename C>
[[gnu::noinline]] void put_at(int32_t dtype, void* y, int64_t at, C value) {
  encode_one(dtype, y, at, value);
}

// Walks the elements of a strip with fold F. `states` and `parameters` have n entries.
template <typename F, typename C>
class Walker {
 public:
  using State = typename F::State;
  Walker(const Params& p, const Plan& plan) : p_(p), plan_(plan), size_(element_size(p.x_dtype)) {}

  void fold(const Strip& strip, State* states, const C* parameters) const {
    for (int64_t i = 0; i < strip.n; ++i) states[i] = F::start();
    const Dim& in = plan_.reduced_inner;
    const int64_t outer = in.size ? plan_.elements / in.size : 0;
    for (int64_t r = 0; r < outer; ++r) {
      const std::byte* x = strip.x + locate(plan_.reduced, r).x * size_;
      if (plan_.side_by_side) {
        rows(x, strip.n, states, parameters, r * in.size);
      } else {
        runs(x, strip.n, states, parameters, r * in.size);
      }
    }
  }

 private:
  const C* numbers(const std::byte* x, int64_t stride, int64_t n, C* room) const {
    return numbers_at(p_.x_dtype, x, stride, n, room);
  }

  void rows(const std::byte* x, int64_t n, State* states, const C* parameters,
            int64_t position) const {
    C room[kWidth];
    const Dim& in = plan_.reduced_inner;
    for (int64_t i = 0; i < in.size; ++i) {
      const C* row = numbers(x + i * in.x * size_, plan_.kept_inner.x, n, room);
      F::row(states, row, n, parameters, position + i);
    }
  }

  void runs(const std::byte* x, int64_t n, State* states, const C* parameters,
            int64_t position) const {
    const Dim& in = plan_.reduced_inner;
    const int64_t next = plan_.kept_inner.x * size_;
    if (in.x == 1 && is_native<C>(p_.x_dtype)) {
      for (int64_t o = 0; o < n; ++o, x += next)
        F::run(states[o], reinterpret_cast<const C*>(x), in.size, parameters[o], position);
      return;
    }
    C room[kPiece];
    for (int64_t o = 0; o < n; ++o, x += next) {
      for (int64_t i = 0; i < in.size; i += kPiece) {
        const int64_t piece = in.size - i < kPiece ? in.size - i : kPiece;
        const C* run = numbers(x + i * in.x * size_, in.x, piece, room);
        F::run(states[o], run, piece, parameters[o], position + i);
      }
    }
  }

  const Params& p_;
  const Plan& plan_;
  const int64_t size_;
};

// One strip, whichever reduction: folds, finishes, stores.
template <typename C>
class Reducer {
 public:
  Reducer(const Params& p, const Plan& plan, void* y) : p_(p), plan_(plan), y_(y) {}

  void reduce(const Strip& strip) const {
    const auto n = static_cast<double>(plan_.elements);
    const auto same = [](auto s) { return s; };
    switch (p_.op) {
      case kSum:
        return apply<Sum<C, Itself>>(strip, same);
      case kMean:
        return apply<Sum<C, Itself>>(strip, [=](auto s) { return mean_of(s, n); });
      case kMax:
        return apply<Extreme<1, C>>(strip, same);
      case kMin:
        return apply<Extreme<-1, C>>(strip, same);
      case kProd:
        return apply<Each<C, typename TotalOf<C>::type, Product>>(strip, same);
      case kAny:
        return apply<Each<C, int64_t, AnyTrue>>(strip, same);
      case kAll:
        return apply<Each<C, int64_t, AllTrue>>(strip, same);
      case kArgmax:
        return apply<ArgExtreme<1, C>>(strip, position_of);
      case kArgmin:
        return apply<ArgExtreme<-1, C>>(strip, position_of);
      case kSumSquares:
        return apply<Sum<C, Square>>(strip, same);
      case kSumMagnitudes:
        return apply<Sum<C, Magnitude>>(strip, same);
      default:
        if constexpr (!__is_same(C, int64_t)) reduce_real(strip, n);
    }
  }

 private:
  static constexpr auto position_of = [](const auto& s) { return s.at < 0 ? int64_t{0} : s.at; };
  static double mean_of(double sum, double n) { return sum / n; }
  static int64_t mean_of(uint64_t sum, double n) {
    return n > 0 ? wrap(sum) / static_cast<int64_t>(n) : 0;
  }

  void reduce_real(const Strip& strip, double n) const {
    C parameters[kWidth];
    if (p_.op == kL2Norm)
      return apply<Sum<C, Square>>(strip, [](double s) { return __builtin_sqrt(s); });
    if (p_.op == kLogSumExp) {
      fold<Extreme<1, C>>(strip, parameters, [&](int64_t i, C max) {
        parameters[i] = max - max == 0 ? max : C{};  // an infinite one would leave NaN
      });
      return fold<Sum<C, Exponential>>(strip, parameters, [&](int64_t i, double sum) {
        put(strip, i, __builtin_log(sum) + static_cast<double>(parameters[i]));
      });
    }
    reduce_variance(strip, n, parameters);
  }

  // Squared distances are from a mean that rounding moved; the distances themselves tell how far,
  // and what that adds to the squares (Chan, Golub and LeVeque, "Algorithms for Computing the
  // Sample Variance", 1983, formula 1.7).
  void reduce_variance(const Strip& strip, double n, C* means) const {
    double gaps[kWidth];
    fold<Sum<C, Itself>>(strip, means,
                         [&](int64_t i, double sum) { means[i] = static_cast<C>(sum / n); });
    fold<Sum<C, Distance>>(strip, means, [&](int64_t i, double sum) { gaps[i] = sum / n; });
    const double divisor = n > p_.correction ? n - p_.correction : 0;
    fold<Sum<C, SquaredDistance>>(strip, means, [&](int64_t i, double squares) {
      squares -= n * gaps[i] * gaps[i];
      const double variance = (squares < 0 ? 0 : squares) / divisor;
      put(strip, i, p_.op == kStd ? __builtin_sqrt(variance) : variance);
    });
  }

  // Folds with F and calls f(i, state) for each output.
  template <typename F, typename G>
  void fold(const Strip& strip, const C* parameters, G f) const {
    typename F::State states[kWidth];
    Walker<F, C>(p_, plan_).fold(strip, states, parameters);
    for (int64_t i = 0; i < strip.n; ++i) f(i, states[i]);
  }
  template <typename F, typename G>
  void apply(const Strip& strip, G finish) const {
    static constexpr C none[kWidth] = {};
    const auto stored = [&](const auto& state) {
      const auto value = finish(state);
      if constexpr (__is_same(decltype(value), const uint64_t)) {
        return wrap(value);
      } else {
        return value;
      }
    };
    using T = decltype(stored(*static_cast<const typename F::State*>(nullptr)));
    T results[kWidth];
    fold<F>(strip, none, [&](int64_t i, const auto& state) { results[i] = stored(state); });
    void* y = static_cast<std::byte*>(y_) + strip.y * element_size(p_.y_dtype);
    encode_run(results, 1, strip.n, p_.y_dtype, y, plan_.kept_inner.y);
  }

  template <typename T>
  void put(const Strip& strip, int64_t i, T value) const {
    put_at(p_.y_dtype, y_, strip.y + i * plan_.kept_inner.y, value);
  }

  const Params& p_;
  const Plan& plan_;
  void* y_;
};

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  const Plan plan = make_plan(p);
  const auto* x = static_cast<const std::byte*>(call.operands[0]);
  const Dim& out = plan.kept_inner;
  const int64_t width = plan.width, size = element_size(p.x_dtype);
  const int64_t strips = (out.size - 1) / width + 1;
  const int64_t end = call.end * plan.per_task, last = end < plan.items ? end : plan.items;
  with_class(class_of(p), [&](auto type) {
    const Reducer<decltype(type)> reducer(p, plan, call.operands[1]);
    for (int64_t item = call.begin * plan.per_task; item < last; ++item) {
      const Offsets at = locate(plan.kept, item / strips);
      const int64_t first = item % strips * width, left = out.size - first;
      reducer.reduce(
          {x + (at.x + first * out.x) * size, at.y + first * out.y, left < width ? left : width});
    }
  });
}

int64_t count_tasks(const void* params, int64_t) {
  const Plan plan = make_plan(*static_cast<const Params*>(params));
  return plan.items == 0 ? 0 : (plan.items - 1) / plan.per_task + 1;
}

int64_t scratch(const void*) {
  return 0;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  if (p.op < 0 || p.op >= kOps) return "the reduction does not exist";
  const int64_t x_size = element_size(p.x_dtype), y_size = element_size(p.y_dtype);
  if (x_size == 0 || y_size == 0) return "a dtype does not exist";
  const bool real = p.op == kVar || p.op == kStd || p.op == kL2Norm || p.op == kLogSumExp;
  if (real && compute_class(p.y_dtype) == kClassI) return "the reduction needs a float result";
  if (!(std::abs(p.correction) < 0x1p62)) return "the correction is out of range";
  if (p.rank < 0 || p.rank > abi::kRank || p.reduced_rank < 0 || p.reduced_rank > abi::kRank)
    return "the rank is out of range";
  Region x;
  x.dims(p.shape, p.x_strides, p.rank).dims(p.reduced, p.reduced_strides, p.reduced_rank);
  if (const char* why = x.reads(c, 0, x_size)) return why;
  const Region y = Region().dims(p.shape, p.y_strides, p.rank);
  return y.writes(c, 1, y_size);
}

}  // namespace

extern const KernelEntry reduce_kernel;
const KernelEntry reduce_kernel = {"reduce", Params::kSchema, sizeof(Params), run,
                                   check,    count_tasks,     scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
