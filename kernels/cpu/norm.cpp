// Layer norm and RMS norm of rows of `size` contiguous elements. Each row is read three times (two
// for RMS) from the first-level cache: mean, distances from it and their squares (so that a large
// mean costs no digits), result. Of short rows, whose lanes take longer to add up than their
// elements, kLanes are summed together. y may be x's memory if dtypes and strides are equal.
#include "kernels/cpu/accumulate.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/transpose.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::NormParams;

constexpr int64_t kTaskElements = 16384;
constexpr int64_t kShortRow = kLanes >= 8 ? 16 * kLanes : 0;  // of wide vectors' lanes
constexpr int32_t kFloat64 = static_cast<int32_t>(abi::DType::kFloat64);
enum Kind : int32_t { kLayerNorm = 0, kRmsNorm = 1 };

// Elements of a row that are converted at a time.
constexpr int64_t kPiece = 512;

// Calls f(numbers, count) with a row of any storage type, piece by piece where it needs conversion.
template <typename C, typename T, typename F>
void for_each_piece(const T* x, int64_t n, F f) {
  if constexpr (__is_same(C, T)) {
    f(x, n);
  } else {
    C piece[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
      const int64_t count = n - i < kPiece ? n - i : kPiece;
      decode_run(x + i, 1, count, piece);
      f(piece, count);
    }
  }
}

// A row's result is (x - center) * scale + offset.
template <typename C>
struct Affine {
  C center, scale, offset;
};

template <typename C, typename T>
Affine<C> affine_of(const Params& p, const T* x) {
  using V = typename Pack<C>::type;
  const auto n = static_cast<double>(p.size);
  double sum = 0;
  if (p.kind == kRmsNorm) {
    for_each_piece<C>(x, p.size, [&](const C* piece, int64_t count) {
      sum += accumulate(piece, count, [](V v) { return v * v; });
    });
    return {0, static_cast<C>(1 / __builtin_sqrt(sum / n + p.eps)), 0};
  }
  for_each_piece<C>(x, p.size, [&](const C* piece, int64_t count) {
    sum += accumulate(piece, count, [](V v) { return v; });
  });
  const C center = static_cast<C>(sum / n);
  Distances distances;
  for_each_piece<C>(x, p.size, [&](const C* piece, int64_t count) {
    const Distances d = accumulate_distances(piece, count, center);
    distances.sum += d.sum;
    distances.squares += d.squares;
  });
  const double gap = distances.sum / n;
  const double variance = distances.squares / n - gap * gap;
  const double scale = 1 / __builtin_sqrt((variance < 0 ? 0 : variance) + p.eps);
  return {center, static_cast<C>(scale), static_cast<C>(-gap * scale)};
}

// Lane r is the sum of the lanes of rows[r], apart from their use, as it is long.
[[maybe_unused, gnu::noinline]] Vec sum_lanes_of(Vec (&rows)[kLanes]) {
  return sum_each(rows);
}

// Calls f(v) with the vectors of a row, lanes after its end as `rest`.
template <typename X, typename F>
inline void for_each_vector(const X* x, int64_t n, float rest, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(load(x + i));
  if (i < n) f(first_lanes(load_part(x + i, n - i), n - i, rest));
}

// The same of `count` short rows, at most kLanes; no row's depends on another's.
template <typename X>
[[gnu::noinline]] void affine_of_rows(const Params& p, const X* x, int64_t count,
                                      Affine<float> (&rows)[kLanes]) {
  const float share = 1 / static_cast<float>(p.size);
  const auto eps = static_cast<float>(p.eps);
  Vec sums[kLanes] = {}, squares[kLanes] = {};
  float centers[kLanes] = {}, scales[kLanes], offsets[kLanes];
  if (p.kind == kLayerNorm) {
    for (int64_t r = 0; r < count; ++r) {
      Vec sum{};
      for_each_vector(x + r * p.x_row_stride, p.size, 0, [&](Vec v) { sum += v; });
      sums[r] = sum * share;
    }
    store(centers, sum_lanes_of(sums));
  }
  for (int64_t r = 0; r < count; ++r) {
    const Vec center = broadcast(centers[r]);
    Vec sum{}, square{};
    for_each_vector(x + r * p.x_row_stride, p.size, centers[r], [&](Vec v) {
      const Vec d = v - center;
      sum += d;
      square += d * d;
    });
    sums[r] = sum * share;
    squares[r] = square * share;
  }
  const Vec gap = p.kind == kLayerNorm ? sum_lanes_of(sums) : Vec{};
  const Vec variance = sum_lanes_of(squares) - gap * gap;
  const Vec scale = 1.0F / sqrt((variance < 0 ? Vec{} : variance) + eps);
  store(scales, scale);
  store(offsets, -gap * scale);
  for (int64_t r = 0; r < count; ++r) rows[r] = {centers[r], scales[r], offsets[r]};
}

// y = ((x - center) * scale + offset) * weight + bias over vectors.
template <bool kWeight, bool kBias, typename X, typename Y>
void normalize(const X* x, Y* y, int64_t n, const float* weight, const float* bias,
               const Affine<float>& a) {
  const Vec center = broadcast(a.center), scale = broadcast(a.scale);
  const Vec offset = broadcast(a.offset);
  const auto apply = [&](Vec v, Vec w, Vec b) {
    v = (v - center) * scale + offset;
    if constexpr (kWeight) v *= w;
    if constexpr (kBias) v += b;
    return v;
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec w = kWeight ? load(weight + i) : Vec{}, b = kBias ? load(bias + i) : Vec{};
    store(y + i, apply(load(x + i), w, b));
  }
  if (i < n) {
    const int64_t rest = n - i;
    const Vec w = kWeight ? load_part(weight + i, rest) : Vec{};
    const Vec b = kBias ? load_part(bias + i, rest) : Vec{};
    store_part(y + i, apply(load_part(x + i, rest), w, b), rest);
  }
}

template <typename X, typename Y>
void norm_row(const Params& p, const X* x, Y* y, const float* weight, const float* bias,
              const Affine<float>& a) {
  if (weight && bias) return normalize<true, true>(x, y, p.size, weight, bias, a);
  if (weight) return normalize<true, false>(x, y, p.size, weight, bias, a);
  if (bias) return normalize<false, true>(x, y, p.size, weight, bias, a);
  normalize<false, false>(x, y, p.size, weight, bias, a);
}

// `count` rows, at most kLanes.
template <typename X, typename Y>
void norm_rows(const Params& p, const X* x, Y* y, int64_t count, const float* weight,
               const float* bias) {
  Affine<float> rows[kLanes];
  if constexpr (kShortRow > 0) {
    if (p.size <= kShortRow) affine_of_rows(p, x, count, rows);
  }
  for (int64_t r = 0; p.size > kShortRow && r < count; ++r) {
    rows[r] = affine_of<float>(p, x + r * p.x_row_stride);
  }
  for (int64_t r = 0; r < count; ++r) {
    norm_row(p, x + r * p.x_row_stride, y + r * p.y_row_stride, weight, bias, rows[r]);
  }
}

void norm_rows(const Params& p, const double* x, double* y, int64_t count, const double* weight,
               const double* bias) {
  for (; count > 0; --count, x += p.x_row_stride, y += p.y_row_stride) {
    const Affine<double> a = affine_of<double>(p, x);
    for (int64_t i = 0; i < p.size; ++i) {
      const double v = ((x[i] - a.center) * a.scale + a.offset) * (weight ? weight[i] : 1);
      y[i] = v + (bias ? bias[i] : 0);
    }
  }
}

int64_t rows_per_task(const Params& p) {
  const int64_t rows = p.size < kTaskElements ? kTaskElements / (p.size > 0 ? p.size : 1) : 1;
  return p.rows <= 2 * rows && rows > 1 ? p.rows : rows;
}

int64_t count_tasks(const void* params, int64_t) {
  const Params& p = *static_cast<const Params*>(params);
  return p.rows == 0 || p.size == 0 ? 0 : (p.rows - 1) / rows_per_task(p) + 1;
}

// Weight or bias as numbers of class C: in place, or converted to `room`.
template <typename C>
const C* parameter(const Params& p, const void* operand, C* room) {
  if (element_size(p.w_dtype) == sizeof(C)) return static_cast<const C*>(operand);
  decode_run(p.w_dtype, operand, 1, p.size, room);
  return room;
}

template <typename C, typename X, typename Y>
void run_rows(const KernelCall& call, const X* x, Y* y) {
  const Params& p = *static_cast<const Params*>(call.params);
  C* room = static_cast<C*>(call.scratch);
  const C* weight = p.has_weight ? parameter(p, call.operands[1], room) : nullptr;
  const C* bias =
      p.has_bias ? parameter(p, call.operands[1 + p.has_weight], room + p.size) : nullptr;
  const int64_t each = rows_per_task(p);
  const int64_t end = call.end * each < p.rows ? call.end * each : p.rows;
  // Long rows one by one: each is in the near cache until its result is written.
  const int64_t together = p.size <= kShortRow ? kLanes : 1;
  for (int64_t row = call.begin * each; row < end; row += together) {
    const int64_t count = end - row < together ? end - row : together;
    norm_rows(p, x + row * p.x_row_stride, y + row * p.y_row_stride, count, weight, bias);
  }
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  const void* x = call.operands[0];
  void* y = call.operands[1 + p.has_weight + p.has_bias];
  if (p.x_dtype == kFloat64)
    return run_rows<double>(call, static_cast<const double*>(x), static_cast<double*>(y));
  with_float_type(p.x_dtype, [&](auto from) {
    with_float_type(p.y_dtype, [&](auto to) {
      run_rows<float>(call, static_cast<const decltype(from)*>(x), static_cast<decltype(to)*>(y));
    });
  });
}

// Room for the parameters where they need conversion.
int64_t scratch(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  const int64_t size = p.x_dtype == kFloat64 ? 8 : 4;
  const bool parameters = p.has_weight || p.has_bias;
  return parameters && element_size(p.w_dtype) != size ? 2 * size * p.size : 0;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (p.kind != kLayerNorm && p.kind != kRmsNorm) return "the kind of norm does not exist";
  if (!is_flag(p.has_weight) || !is_flag(p.has_bias)) return "a flag is not 0 or 1";
  const auto parameters = static_cast<size_t>(p.has_weight + p.has_bias);
  if (const char* why = operand_count(c, 2 + parameters)) return why;
  const int32_t w_dtype = parameters ? p.w_dtype : p.x_dtype;
  const bool wide = p.x_dtype == kFloat64 && p.y_dtype == kFloat64 && w_dtype == kFloat64;
  if (!wide && !(is_float(p.x_dtype) && is_float(p.y_dtype) && is_float(w_dtype)))
    return "a dtype is not one that norm computes";
  const Region x = Region().dim(p.rows, p.x_row_stride).dim(p.size, 1);
  const Region y = Region().dim(p.rows, p.y_row_stride).dim(p.size, 1);
  if (const char* why = x.reads(c, 0, element_size(p.x_dtype))) return why;
  for (size_t i = 1; i <= parameters; ++i) {
    if (const char* why = Region().dim(p.size, 1).reads(c, i, element_size(p.w_dtype))) return why;
  }
  return y.writes(c, 1 + parameters, element_size(p.y_dtype));
}

int in_place(const void*, int read) {
  return read == 0 ? 0 : -1;
}

}  // namespace

extern const KernelEntry norm_kernel;
const KernelEntry norm_kernel = {"norm",      Params::kSchema, sizeof(Params), run,     check,
                                 count_tasks, scratch,         nullptr,        in_place};

}  // namespace npusim::cpu::NPUSIM_ISA
