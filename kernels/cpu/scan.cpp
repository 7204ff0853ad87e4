// Inclusive scan along the middle of a dense [outer, size, inner]: sums, products, extremes and
// log-sum-exp of what came before. Owns the order (front to back) and the accumulators: double for
// floats, as PyTorch's. y may be x's memory if the dtypes are equal.
#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/scalar_ops.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ScanParams;

enum Op : int32_t { kSum, kProd, kMax, kMin, kLogSumExp, kOps };

constexpr int64_t kStrip = 128;  // columns of a task
constexpr int64_t kTaskElements = 16384;

double log_add_exp(double a, double b) {
  if (a != a || b != b) return a + b;
  const double low = a < b ? a : b, high = a < b ? b : a;
  // Equal infinities: their difference is not a number, the answer is.
  if (low == high && high - high != 0) return high;
  return high + __builtin_log1p(__builtin_exp(low - high));
}

template <int kOp>
double combine(double a, double x) {
  if constexpr (kOp == kSum) return a + x;
  if constexpr (kOp == kProd) return a * x;
  if constexpr (kOp == kMax) return maximum(a, x);
  if constexpr (kOp == kMin) return minimum(a, x);
  return log_add_exp(a, x);
}
template <int kOp>
int64_t combine(int64_t a, int64_t x) {
  if constexpr (kOp == kSum) return wrap(to_unsigned(a) + to_unsigned(x));
  if constexpr (kOp == kProd) return wrap(to_unsigned(a) * to_unsigned(x));
  if constexpr (kOp == kMax) return maximum(a, x);
  return minimum(a, x);
}

// Columns [0, n) of one [size, inner] matrix, n <= kStrip.
template <int kOp, typename C>
void scan_strip(const Params& p, const std::byte* x, std::byte* y, int64_t n) {
  C row[kStrip], state[kStrip];
  const int64_t x_step = p.inner * element_size(p.x_dtype);
  const int64_t y_step = p.inner * element_size(p.y_dtype);
  for (int64_t s = 0; s < p.size; ++s) {
    decode_run(p.x_dtype, x + s * x_step, 1, n, s == 0 ? state : row);
    for (int64_t j = 0; s > 0 && j < n; ++j) state[j] = combine<kOp>(state[j], row[j]);
    encode_run(state, 1, n, p.y_dtype, y + s * y_step, 1);
  }
}

// One dense row; the columns of a strip would be one.
template <int kOp, typename C>
void scan_row(const Params& p, const std::byte* x, std::byte* y) {
  C piece[kStrip], last{};
  for (int64_t at = 0; at < p.size; at += kStrip) {
    const int64_t n = p.size - at < kStrip ? p.size - at : kStrip;
    decode_run(p.x_dtype, x + at * element_size(p.x_dtype), 1, n, piece);
    if (at == 0) last = piece[0];
    for (int64_t j = at == 0; j < n; ++j) {
      last = combine<kOp>(last, piece[j]);
      piece[j] = last;
    }
    encode_run(piece, 1, n, p.y_dtype, y + at * element_size(p.y_dtype), 1);
  }
}

// Rows or strips, numbered along the output; several make a task.
struct Split {
  int64_t strips, items, per_task, tasks;
};
Split split_of(const Params& p) {
  Split s{};
  if (p.outer == 0 || p.size == 0 || p.inner == 0) return s;
  const int64_t width = p.inner < kStrip ? p.inner : kStrip;
  s.strips = (p.inner - 1) / kStrip + 1;
  s.items = p.outer * s.strips;
  s.per_task = p.size < kTaskElements / width ? kTaskElements / (p.size * width) : 1;
  s.tasks = (s.items - 1) / s.per_task + 1;
  return s;
}

template <int kOp, typename C>
void run_items(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  const auto* x = static_cast<const std::byte*>(call.operands[0]);
  auto* y = static_cast<std::byte*>(call.operands[1]);
  const Split s = split_of(p);
  const int64_t end = call.end * s.per_task, last = end < s.items ? end : s.items;
  for (int64_t item = call.begin * s.per_task; item < last; ++item) {
    const int64_t column = item % s.strips * kStrip;
    const int64_t at = item / s.strips * p.size * p.inner + column;
    const int64_t n = p.inner - column < kStrip ? p.inner - column : kStrip;
    const std::byte* from = x + at * element_size(p.x_dtype);
    std::byte* to = y + at * element_size(p.y_dtype);
    p.inner == 1 ? scan_row<kOp, C>(p, from, to) : scan_strip<kOp, C>(p, from, to, n);
  }
}

template <typename C>
void run_class(const KernelCall& call, int32_t op) {
  switch (op) {
    case kSum:
      return run_items<kSum, C>(call);
    case kProd:
      return run_items<kProd, C>(call);
    case kMax:
      return run_items<kMax, C>(call);
    case kMin:
      return run_items<kMin, C>(call);
    default:
      if constexpr (!__is_same(C, int64_t)) run_items<kLogSumExp, C>(call);
  }
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  // Elements convert to y's dtype first, as PyTorch's `dtype` argument has it.
  if (compute_class(p.y_dtype) == kClassI) return run_class<int64_t>(call, p.op);
  run_class<double>(call, p.op);
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  if (element_size(p.x_dtype) == 0 || element_size(p.y_dtype) == 0) return "a dtype does not exist";
  if (p.op < 0 || p.op >= kOps) return "the scan does not exist";
  if (p.op == kLogSumExp && compute_class(p.y_dtype) == kClassI)
    return "log-sum-exp of integers does not exist";
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

}  // namespace

extern const KernelEntry scan_kernel;
const KernelEntry scan_kernel = {"scan", Params::kSchema, sizeof(Params), run,
                                 check,  count_tasks,     scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
