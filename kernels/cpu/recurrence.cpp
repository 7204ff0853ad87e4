// All steps of a recurrence (ops/recurrence.py): rows of each step are products of W with the rows
// of the step before. A task has some rows of the state, which need no other task's, and takes them
// through all steps; W is read where it lies, once a step for all rows of the task.
//
// Sums are float, in the order of dot_tile, so that a row does not depend on how many others there
// are; states between steps are rounded to their dtype.
#include "kernels/cpu/check.h"
#include "kernels/cpu/dot_rows.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/storage.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::RecurrenceParams;

enum Cell : int32_t { kPlain, kGru, kLstm, kCells };

constexpr int64_t kTasks = 16;  // that rows are spread over before a task takes several

constexpr int gates_of(int32_t cell) {
  return cell == kPlain ? 1 : cell == kGru ? 3 : 4;
}

int64_t rows_of_task(const Params& p) {
  return std::clamp<int64_t>(p.m / kTasks, 1, kDotRows);
}

// Whole vectors, so that steps along K need no tails.
int64_t padded(int64_t count) {
  return (count + kLanes - 1) / kLanes * kLanes;
}

struct Scratch {
  Arena arena;
  int64_t units, sums;  // of a row
  float *hidden, *state, *products;

  Scratch(const Params& p, void* base)
      : arena(base),
        units(padded(p.units)),
        sums(padded(gates_of(p.cell) * p.units) + kLanes),
        hidden(arena.take<float>(rows_of_task(p) * units)),
        state(arena.take<float>(p.cell == kLstm ? rows_of_task(p) * units : 0)),
        products(arena.take<float>(rows_of_task(p) * sums)) {}
};

// A vector as its storage type keeps it.
template <typename T>
Vec rounded(Vec v) {
  if constexpr (__is_same(T, float)) return v;
  T kept[kLanes];
  store(kept, v);
  return load(kept);
}

template <typename T>
struct Operands {
  const T *sums, *w;
  const float* bias;
  const T *hidden, *state;
  T *y, *last;

  Operands(const Params& p, void* const* operands) {
    int at = 0;
    sums = static_cast<const T*>(operands[at++]);
    w = static_cast<const T*>(operands[at++]);
    bias = p.has_bias != 0 ? static_cast<const float*>(operands[at++]) : nullptr;
    hidden = static_cast<const T*>(operands[at++]);
    state = p.cell == kLstm ? static_cast<const T*>(operands[at++]) : nullptr;
    y = static_cast<T*>(operands[at++]);
    last = p.cell == kLstm ? static_cast<T*>(operands[at]) : nullptr;
  }
};

// Units [u, u + n) of one row: from its products and what is added to them to its next state.
template <int kCell, typename T>
void end_units(const Params& p, const Operands<T>& o, const float* products, const T* sums,
               int64_t u, float* hidden, float* state, T* y) {
  constexpr int kGates = gates_of(kCell);
  const int64_t n = std::min<int64_t>(kLanes, p.units - u);
  Vec s[kGates], a[kGates];
  for (int g = 0; g < kGates; ++g) {
    const int64_t at = p.gates[g] * p.units + u;
    s[g] = load(products + at);
    if (o.bias != nullptr) s[g] += load_lanes(o.bias + at, n);
    a[g] = load_lanes(sums + at, n);
  }
  Vec h;
  if constexpr (kCell == kPlain) {
    const Vec x = s[0] + a[0];
    h = p.act == static_cast<int32_t>(abi::Opcode::kRelu) ? relu(x) : tanh(x);
  } else if constexpr (kCell == kGru) {
    const Vec candidate = tanh(a[2] + sigmoid(s[0] + a[0]) * s[2]);
    h = (load(hidden + u) - candidate) * sigmoid(s[1] + a[1]) + candidate;
  } else {
    const Vec entered = sigmoid(s[0] + a[0]) * tanh(s[2] + a[2]);
    const Vec cell = sigmoid(s[1] + a[1]) * load(state + u) + entered;
    h = sigmoid(s[3] + a[3]) * tanh(cell);
    store(state + u, rounded<T>(cell));
  }
  store_lanes(y + u, h, n);
  store(hidden + u, load_lanes(y + u, n));  // zeros behind the last unit
}

// `rows` rows from `row` on, through all steps.
template <int kCell, typename T>
void run_rows(const Params& p, const Operands<T>& o, const Scratch& s, int64_t row, int64_t rows) {
  const int64_t columns = gates_of(kCell) * p.units;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t u = 0; u < p.units; u += kLanes) {
      const int64_t at = (row + r) * p.units + u, n = p.units - u;
      store(s.hidden + r * s.units + u, load_lanes(o.hidden + at, n));
      if (kCell == kLstm) store(s.state + r * s.units + u, load_lanes(o.state + at, n));
    }
  }
  const DotRows dots{.a = s.hidden,
                     .a_row = s.units,
                     .b_row = p.ldw,
                     .k = p.units,
                     .y = s.products,
                     .y_row = s.sums,
                     .add = false};
  for (int64_t step = 0; step < p.steps; ++step) {
    const int64_t place = p.reverse != 0 ? p.steps - 1 - step : step;
    dot_rows(dots, rows, o.w, columns);
    for (int64_t r = 0; r < rows; ++r) {
      const T* sums = o.sums + place * p.sums_step + (row + r) * p.sums_row;
      T* y = o.y + place * p.y_step + (row + r) * p.y_row;
      for (int64_t u = 0; u < p.units; u += kLanes) {
        end_units<kCell>(p, o, s.products + r * s.sums, sums, u, s.hidden + r * s.units,
                         kCell == kLstm ? s.state + r * s.units : nullptr, y);
      }
    }
  }
  for (int64_t r = 0; kCell == kLstm && r < rows; ++r) {
    for (int64_t u = 0; u < p.units; u += kLanes)
      store_lanes(o.last + (row + r) * p.units + u, load(s.state + r * s.units + u), p.units - u);
  }
}

template <int kCell, typename T>
void run_tasks(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  const Operands<T> operands(p, call.operands);
  const Scratch scratch(p, call.scratch);
  const int64_t each = rows_of_task(p);
  for (int64_t task = call.begin; task < call.end; ++task) {
    const int64_t row = task * each;
    run_rows<kCell>(p, operands, scratch, row, std::min(each, p.m - row));
  }
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    if (p.cell == kPlain) return run_tasks<kPlain, T>(call);
    if (p.cell == kGru) return run_tasks<kGru, T>(call);
    run_tasks<kLstm, T>(call);
  });
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (p.cell < 0 || p.cell >= kCells) return "the cell does not exist";
  if (!is_flag(p.reverse) || !is_flag(p.has_bias)) return "a flag is neither 0 nor 1";
  if (!is_float(p.dtype)) return "the dtype is not float32, float16 or bfloat16";
  const auto act = static_cast<abi::Opcode>(p.act);
  if (act != abi::Opcode::kTanh && act != abi::Opcode::kRelu)
    return "the activation is neither tanh nor relu";
  const int gates = gates_of(p.cell);
  for (int g = 0; g < gates; ++g) {
    if (p.gates[g] < 0 || p.gates[g] >= gates) return "a gate has no place in the weight";
  }
  const int64_t sizes[] = {p.steps, p.m, gates, p.units};
  if (product(sizes, 4) < 0) return "a size is negative or too large";
  const int64_t size = element_size(p.dtype), columns = gates * p.units, dense = p.m * p.units;
  const size_t is_lstm = p.cell == kLstm, bias = static_cast<size_t>(p.has_bias);
  if (const char* why = operand_count(c, 4 + bias + 2 * is_lstm)) return why;
  size_t at = 0;
  const auto reads = [&](const Region& region, int64_t bytes) {
    return region.reads(c, at++, bytes);
  };
  const Region sums = Region().dim(p.steps, p.sums_step).dim(p.m, p.sums_row).dim(columns, 1);
  if (const char* why = reads(sums, size)) return why;
  if (const char* why = reads(Region().dim(columns, p.ldw).dim(p.units, 1), size)) return why;
  if (bias != 0) {
    if (const char* why = reads(Region().dim(columns, 1), sizeof(float))) return why;
  }
  for (size_t i = 0; i <= is_lstm; ++i) {
    if (const char* why = reads(Region().dim(dense, 1), size)) return why;
  }
  const Region y = Region().dim(p.steps, p.y_step).dim(p.m, p.y_row).dim(p.units, 1);
  if (const char* why = y.writes(c, at++, size)) return why;
  return is_lstm != 0 ? Region().dim(dense, 1).writes(c, at, size) : nullptr;
}

int64_t tasks(const void* params, int64_t) {
  const Params& p = *static_cast<const Params*>(params);
  return p.units == 0 ? 0 : (p.m + rows_of_task(p) - 1) / rows_of_task(p);
}

int64_t scratch(const void* params) {
  return Scratch(*static_cast<const Params*>(params), nullptr).arena.bytes();
}

int outputs(const void* params) {
  return static_cast<const Params*>(params)->cell == kLstm ? 2 : 1;
}

int64_t work(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  return saturated({p.steps, p.m, gates_of(p.cell), p.units, p.units});
}

}  // namespace

extern const KernelEntry recurrence_kernel;
const KernelEntry recurrence_kernel = {
    "recurrence", Params::kSchema, sizeof(Params), run,     check,
    tasks,        scratch,         outputs,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
