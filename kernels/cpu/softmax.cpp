// softmax and log_softmax along the middle of a dense [outer, size, inner]. Rows (inner 1) take
// three passes over memory that stays in the first-level cache: largest value, exponentials and
// their sum, scaling. With inner > 1 the same runs over strips of neighbouring columns, of narrow
// matrices over several rows as if they were one. A row of -inf alone is NaN, as in PyTorch. y may
// be x's memory if the dtypes are equal.
#include "kernels/cpu/accumulate.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::SoftmaxParams;

constexpr int64_t kStrip = 4 * kLanes;   // columns of a strip
constexpr int64_t kTaskElements = 8192;  // an exponential each
constexpr int32_t kFloat32 = static_cast<int32_t>(abi::DType::kFloat32);
constexpr int32_t kFloat64 = static_cast<int32_t>(abi::DType::kFloat64);

// The larger; NaN of `v` is dropped here and comes back with its exponential.
Vec larger(Vec best, Vec v) {
  return v > best ? v : best;
}

// The largest lane, pairwise; there is no NaN.
float largest_lane(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    }
  }
  return lanes[0];
}

template <typename X>
float largest(const X* x, int64_t n) {
  Vec best[4];
  for (Vec& b : best) b = broadcast(-kInfinity);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) best[k] = larger(best[k], load(x + i + k * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) best[0] = larger(best[0], load(x + i));
  if (i < n) best[1] = larger(best[1], first_lanes(load_part(x + i, n - i), n - i, -kInfinity));
  return largest_lane(larger(larger(best[0], best[1]), larger(best[2], best[3])));
}

// Calls f(i, vector) for the row's vectors, the last one with `rest` beyond the row; f returns
// what to store at y + i.
template <typename X, typename Y, typename F>
void transform(const X* x, Y* y, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(x + i)));
  if (i < n) store_part(y + i, f(first_lanes(load_part(x + i, n - i), n - i, -kInfinity)), n - i);
}

// The sum of e^(x - max), in two vectors at a time.
template <typename X>
float sum_exp(const X* x, int64_t n, float max) {
  Vec sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    sums[0] += exp(load(x + i) - max);
    sums[1] += exp(load(x + i + kLanes) - max);
  }
  for (; i < n; i += kLanes) {
    const Vec v =
        n - i < kLanes ? first_lanes(load_part(x + i, n - i), n - i, -kInfinity) : load(x + i);
    sums[0] += exp(v - max);
  }
  return sum(sums[0] + sums[1]);
}

// A row of V vectors, the last one perhaps in part, which stays in registers.
template <int V>
void softmax_short(const float* x, float* y, int64_t n) {
  const int64_t rest = n - (V - 1) * kLanes;
  Vec e[V], best = broadcast(-kInfinity), total{};
  for (int i = 0; i < V - 1; ++i) e[i] = load(x + i * kLanes);
  e[V - 1] = first_lanes(load_part(x + (V - 1) * kLanes, rest), rest, -kInfinity);
  for (const Vec& v : e) best = larger(best, v);
  const float max = largest_lane(best);
  for (Vec& v : e) total += v = exp(v - max);
  const float scale = 1.0f / sum(total);
  for (int i = 0; i < V - 1; ++i) store(y + i * kLanes, e[i] * scale);
  store_part(y + (V - 1) * kLanes, e[V - 1] * scale, rest);
}

template <typename X, typename Y>
void softmax_row(const X* x, Y* y, int64_t n) {
  if constexpr (__is_same(X, float) && __is_same(Y, float)) {
    constexpr void (*kShort[])(const float*, float*, int64_t) = {
        softmax_short<1>, softmax_short<2>, softmax_short<3>, softmax_short<4>};
    if (n <= 4 * kLanes) return kShort[(n - 1) / kLanes](x, y, n);
  }
  const float max = largest(x, n);
  if constexpr (__is_same(Y, float)) {
    Vec total{};
    transform(x, y, n, [&](Vec v) {
      const Vec e = exp(v - max);
      total += e;
      return e;
    });
    const Vec scale = broadcast(1.0f / sum(total));
    transform(y, y, n, [&](Vec v) { return v * scale; });
  } else {
    const Vec scale = broadcast(1.0f / sum_exp(x, n, max));
    transform(x, y, n, [&](Vec v) { return exp(v - max) * scale; });
  }
}

template <typename X, typename Y>
void log_softmax_row(const X* x, Y* y, int64_t n) {
  const float max = largest(x, n);
  const float log_sum = __builtin_logf(sum_exp(x, n, max));
  transform(x, y, n, [&](Vec v) { return (v - max) - log_sum; });
}

// Lines of columns, `pitch` apart: `n` <= kStrip in each, `last` in the last one.
struct Lines {
  int64_t count, pitch, n, last;

  // Calls f(line, column, vector) for all vectors; lanes beyond the columns are -inf.
  template <typename F>
  void each(const void* x, int32_t dtype, F f) const {
    float row[kStrip];
    for (int64_t s = 0; s < count; ++s) {
      const int64_t columns = s + 1 < count ? n : last;
      const float* line = static_cast<const float*>(x) + s * pitch;
      if (dtype != kFloat32) {
        decode_run(dtype, element(x, dtype, s), 1, columns, row);
        line = row;
      }
      for (int64_t j = 0; j < columns; j += kLanes) {
        const int64_t left = columns - j;
        f(s, j,
          left < kLanes ? first_lanes(load_part(line + j, left), left, -kInfinity)
                        : load(line + j));
      }
    }
  }
  // Stores a vector of a line where `each` found it.
  void put(void* y, int32_t dtype, int64_t s, int64_t j, Vec v) const {
    const int64_t left = (s + 1 < count ? n : last) - j, columns = left < kLanes ? left : kLanes;
    if (dtype == kFloat32) {
      float* to = static_cast<float*>(y) + s * pitch + j;
      return columns < kLanes ? store_part(to, v, columns) : store(to, v);
    }
    float row[kLanes];
    store(row, v);
    encode_run(row, 1, columns, dtype, element(y, dtype, s, j), 1);
  }

 private:
  void* element(const void* base, int32_t dtype, int64_t s, int64_t j = 0) const {
    const int64_t at = (s * pitch + j) * element_size(dtype);
    return const_cast<char*>(static_cast<const char*>(base)) + at;
  }
};

// Puts what `f` makes of all numbers that are a multiple of `period` apart in the place of each.
template <typename F>
void fold(float* values, int64_t n, int64_t period, F f) {
  for (int64_t from = period; from < n; from += period) {
    for (int64_t j = 0; j < period; ++j) values[j] = f(values[j], values[from + j]);
  }
  for (int64_t j = period; j < n; ++j) values[j] = values[j - period];
}

// The softmax over lines, of columns that are a multiple of `inner` apart together.
void softmax_strip(const Params& p, const void* x, void* y, const Lines& lines) {
  const bool kept = p.y_dtype == kFloat32 && p.log == 0;  // exponentials, as y
  float max[kStrip], total[kStrip] = {};
  for (float& m : max) m = -kInfinity;
  lines.each(x, p.x_dtype,
             [&](int64_t, int64_t j, Vec v) { store(max + j, larger(load(max + j), v)); });
  fold(max, lines.n, p.inner, [](float best, float v) { return v > best ? v : best; });
  lines.each(x, p.x_dtype, [&](int64_t s, int64_t j, Vec v) {
    const Vec e = exp(v - load(max + j));
    store(total + j, load(total + j) + e);
    if (kept) lines.put(y, kFloat32, s, j, e);
  });
  fold(total, lines.n, p.inner, [](float sum, float v) { return sum + v; });
  for (int64_t j = 0; j < lines.n; j += kLanes) {
    const Vec t = load(total + j);
    store(total + j, p.log ? log(t) : 1.0f / t);
  }
  lines.each(kept ? y : x, kept ? kFloat32 : p.x_dtype, [&](int64_t s, int64_t j, Vec v) {
    const Vec shifted = v - load(max + j), t = load(total + j);
    lines.put(y, p.y_dtype, s, j, kept ? v * t : p.log ? shifted - t : exp(shifted) * t);
  });
}

// The lines of strip `strip` of a [size, inner] matrix. Narrow matrices are read as if several
// rows were one, so that vectors are full.
Lines lines_of(const Params& p, int64_t strip) {
  if (p.inner > kStrip / 2) {
    const int64_t left = p.inner - strip * kStrip, n = left < kStrip ? left : kStrip;
    return {p.size, p.inner, n, n};
  }
  const int64_t n = kStrip / p.inner * p.inner, all = p.size * p.inner, count = (all - 1) / n + 1;
  return {count, n, count > 1 ? n : all, all - (count - 1) * n};
}

// One column in double.
void softmax_column(const double* x, double* y, int64_t size, int64_t inner, bool log) {
  double max = -static_cast<double>(kInfinity), total = 0;
  for (int64_t s = 0; s < size; ++s) max = x[s * inner] > max ? x[s * inner] : max;
  for (int64_t s = 0; s < size; ++s) total += __builtin_exp(x[s * inner] - max);
  const double log_total = __builtin_log(total);
  for (int64_t s = 0; s < size; ++s) {
    const double shifted = x[s * inner] - max;
    y[s * inner] = log ? shifted - log_total : __builtin_exp(shifted) / total;
  }
}

// Rows or strips, numbered along the output; several make a task.
struct Split {
  int64_t width, strips, items, per_task, tasks;
};
Split split_of(const Params& p) {
  Split s{};
  if (p.outer == 0 || p.size == 0 || p.inner == 0) return s;
  s.width = p.x_dtype == kFloat64 || p.inner == 1 ? 1 : kStrip;
  s.strips = (p.inner - 1) / s.width + 1;
  s.items = p.outer * s.strips;
  const int64_t wide = p.inner < s.width ? p.inner : s.width;
  const int64_t work = p.size < kTaskElements ? p.size * wide : kTaskElements;
  s.per_task = work < kTaskElements ? kTaskElements / work : 1;
  if (s.items <= 2 * s.per_task && s.per_task > 1) s.per_task = s.items;
  s.tasks = (s.items - 1) / s.per_task + 1;
  return s;
}

template <typename X, typename Y>
void run_item(const Params& p, const X* x, Y* y, int64_t strip) {
  if constexpr (__is_same(X, double)) {
    softmax_column(x, y, p.size, p.inner, p.log != 0);
  } else if (p.inner > 1) {
    softmax_strip(p, x, y, lines_of(p, strip));
  } else if (p.log) {
    log_softmax_row(x, y, p.size);
  } else {
    softmax_row(x, y, p.size);
  }
}

template <typename X, typename Y>
void run_items(const KernelCall& call, const X* x, Y* y) {
  const Params& p = *static_cast<const Params*>(call.params);
  const Split s = split_of(p);
  const int64_t end = call.end * s.per_task, last = end < s.items ? end : s.items;
  for (int64_t item = call.begin * s.per_task; item < last; ++item) {
    const int64_t strip = item % s.strips;
    const int64_t at = item / s.strips * p.size * p.inner + strip * s.width;
    run_item(p, x + at, y + at, strip);
  }
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  if (p.x_dtype == kFloat64) {
    return run_items(call, static_cast<const double*>(call.operands[0]),
                     static_cast<double*>(call.operands[1]));
  }
  with_float_type(p.x_dtype, [&](auto x) {
    with_float_type(p.y_dtype, [&](auto y) {
      run_items(call, static_cast<const decltype(x)*>(call.operands[0]),
                static_cast<decltype(y)*>(call.operands[1]));
    });
  });
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  const bool wide = p.x_dtype == kFloat64 && p.y_dtype == kFloat64;
  if (!wide && !(is_float(p.x_dtype) && is_float(p.y_dtype)))
    return "a dtype is not one that softmax computes";
  const int64_t sizes[] = {p.outer, p.size, p.inner};
  const int64_t count = product(sizes, 3);
  if (count < 0) return "a size is negative or too large";
  if (const char* why = Region().dim(count, 1).reads(c, 0, element_size(p.x_dtype))) return why;
  return Region().dim(count, 1).writes(c, 1, element_size(p.y_dtype));
}

int64_t count_tasks(const void* params, int64_t) {
  return split_of(*static_cast<const Params*>(params)).tasks;
}

int64_t scratch(const void*) {
  return 0;
}

int in_place(const void*, int read) {
  return read == 0 ? 0 : -1;
}

}  // namespace

extern const KernelEntry softmax_kernel;
const KernelEntry softmax_kernel = {"softmax",   Params::kSchema, sizeof(Params), run,     check,
                                    count_tasks, scratch,         nullptr,        in_place};

}  // namespace npusim::cpu::NPUSIM_ISA
