// y = alpha * a·b over batches, for operands that exist only at run time, with any strides; how a
// block of y is computed, matmul_cell.h says, and matmul_pairs.h where pairs of bfloat16 are
// multiplied as they lie.
#include "kernels/cpu/matmul_pairs.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
extern const KernelEntry matmul_kernel, widening_matmul_kernel;
}
#endif

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::MatmulParams;

// How a command is cut: one block of rows and columns of one batch item after another, blocks as
// equal as can be; a task takes as many as make it worth while.
struct Plan {
  int64_t rows = 1, columns = 1;  // of a block of rows; what columns are counted in
  int64_t row_blocks, column_blocks;
  int64_t total, per_task = 1;

  explicit Plan(const Params& p) {
    constexpr double kTaskWork = 1 << 16;   // multiply-adds that a task should have,
    constexpr double kShared = 1 << 18;     // that are worth cutting an item for,
    constexpr double kBlockWork = 1 << 20;  // and that are left in a block
    constexpr double kFewRows = 4;          // fewer still wait for b as long as these
    constexpr int64_t kUneven = 8;          // as many blocks need not be alike
    row_blocks = matmul_blocks(p.m, kMatmulRows);
    column_blocks = matmul_blocks(p.n, kMatmulColumns);
    int64_t items = row_blocks;
    for (const int64_t size : p.batch) items *= size;
    total = items * column_blocks;
    if (total <= 0) return;
    rows = matmul_blocks(p.m, row_blocks);
    const double work = std::max(static_cast<double>(rows), kFewRows) * static_cast<double>(p.n) *
                        static_cast<double>(p.k) * static_cast<double>(items);
    if (work >= kShared && total < kUneven) {
      const auto wanted = static_cast<int64_t>(std::min(work / kBlockWork, double{kUneven}));
      column_blocks = std::max(column_blocks, matmul_blocks(wanted, items));
      if (items * column_blocks % 2 == 1) ++column_blocks;
      column_blocks = std::min(column_blocks, matmul_blocks(p.n, kLanes));
    }
    total = items * column_blocks;
    const int64_t panels = matmul_blocks(p.n, kMatmulPanel), least = total < kUneven ? 4 : 1;
    columns = panels < least * column_blocks ? kLanes : kMatmulPanel;
    const double tasks = std::clamp(work / kTaskWork, 1.0, static_cast<double>(total));
    per_task = matmul_blocks(total, static_cast<int64_t>(tasks));
  }
  int64_t tasks() const { return matmul_blocks(total, per_task); }
  int64_t column(const Params& p, int64_t block) const {
    const int64_t all = matmul_blocks(p.n, columns), more = all % column_blocks;
    return std::min((block * (all / column_blocks) + std::min(block, more)) * columns, p.n);
  }
};

MatmulCell cell_at(const Params& p, const Plan& plan, int64_t index) {
  const int64_t block = index % plan.column_blocks, column = plan.column(p, block);
  index /= plan.column_blocks;
  const int64_t row = index % plan.row_blocks * plan.rows;
  index /= plan.row_blocks;
  MatmulCell cell{row * p.a_m, column * p.b_n, row * p.y_m + column, std::min(plan.rows, p.m - row),
                  plan.column(p, block + 1) - column};
  for (int d = 5; d >= 0 && index > 0; --d) {
    const int64_t i = index % p.batch[d];
    index /= p.batch[d];
    cell.a += i * p.a_batch[d];
    cell.b += i * p.b_batch[d];
    cell.y += i * p.y_batch[d];
  }
  return cell;
}

template <typename F>
void for_each_cell(const KernelCall& call, F&& f) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Plan plan(p);
  const int64_t end = std::min(call.end * plan.per_task, plan.total);
  for (int64_t i = call.begin * plan.per_task; i < end; ++i) f(cell_at(p, plan, i));
}

MatmulOperands operands_of(const KernelCall& call, int32_t y_dtype) {
  return {call.operands[0], call.operands[1], call.operands[2], call.scratch, y_dtype};
}

// y is of a's dtype, or widening of float32.
#ifdef NPUSIM_BASE_ISA
// All that this set adds are dot products of bfloat16; the plan is the same.
const KernelEntry& base(const Params& p, int32_t y_dtype) {
  using namespace NPUSIM_BASE_ISA;
  return y_dtype == p.dtype ? matmul_kernel : widening_matmul_kernel;
}

void multiply(const KernelCall& call, int32_t y_dtype) {
  const auto& p = *static_cast<const Params*>(call.params);
  if (!PairMethod(p, y_dtype).any) return base(p, y_dtype).run(call);
  const PairMatmul matmul(operands_of(call, y_dtype), p);
  for_each_cell(call, [&](const MatmulCell& cell) { matmul.run(cell); });
}

int64_t scratch_bytes(const Params& p, int32_t y_dtype) {
  if (!PairMethod(p, y_dtype).any) return base(p, y_dtype).scratch(&p);
  return PairMatmul({nullptr, nullptr, nullptr, nullptr, y_dtype}, p).bytes();
}
#else
void multiply(const KernelCall& call, int32_t y_dtype) {
  const auto& p = *static_cast<const Params*>(call.params);
  const MatmulOperands operands = operands_of(call, y_dtype);
  with_storage(p.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<Number<T>, float>) {
      FloatMatmul<T> matmul(operands, p);
      for_each_cell(call, [&](const MatmulCell& cell) { matmul.run(cell); });
    } else {
      for_each_cell(call, [&](const MatmulCell& cell) { multiply_plainly<T>(p, cell, operands); });
    }
  });
}

int64_t scratch_bytes(const Params& p, int32_t) {
  return is_float(p.dtype) ? MatmulScratch(p, MatmulMethod(p), nullptr).bytes : 0;
}
#endif

int64_t tasks(const void* params, int64_t) {
  return Plan(*static_cast<const Params*>(params)).tasks();
}

[[gnu::cold]] const char* check_operands(const KernelCheck& c, int32_t y_dtype) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 3)) return why;
  if (const char* why = check_matmul_numbers(p)) return why;
  const int64_t size = element_size(p.dtype);
  const Region a = Region().dims(p.batch, p.a_batch, 6).dim(p.m, p.a_m).dim(p.k, p.a_k);
  const Region b = Region().dims(p.batch, p.b_batch, 6).dim(p.k, p.b_k).dim(p.n, p.b_n);
  const Region y = Region().dims(p.batch, p.y_batch, 6).dim(p.m, p.y_m).dim(p.n, 1);
  if (const char* why = a.reads(c, 0, size)) return why;
  if (const char* why = b.reads(c, 1, size)) return why;
  return y.writes(c, 2, element_size(y_dtype));
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({saturated(p.batch, 6), p.m, p.n, p.k});
}

int32_t dtype_of(const void* params) {
  return static_cast<const Params*>(params)->dtype;
}

void run(const KernelCall& call) {
  multiply(call, dtype_of(call.params));
}
int64_t scratch(const void* params) {
  return scratch_bytes(*static_cast<const Params*>(params), dtype_of(params));
}
const char* check(const KernelCheck& c) {
  return check_operands(c, dtype_of(c.params));
}

void run_widening(const KernelCall& call) {
  multiply(call, 0);
}
int64_t scratch_widening(const void* params) {
  return scratch_bytes(*static_cast<const Params*>(params), 0);
}
const char* check_widening(const KernelCheck& c) {
  const int32_t dtype = dtype_of(c.params);
  if (dtype == 0 || !is_float(dtype)) return "the dtype is not a float of 16 bits";
  return check_operands(c, 0);
}

}  // namespace

extern const KernelEntry matmul_kernel, widening_matmul_kernel;
const KernelEntry matmul_kernel = {"matmul", Params::kSchema, sizeof(Params), run,     check,
                                   tasks,    scratch,         nullptr,        nullptr, work};
const KernelEntry widening_matmul_kernel = {
    "widening_matmul", Params::kSchema, sizeof(Params), run_widening, check_widening, tasks,
    scratch_widening,  nullptr,         nullptr,        work};

}  // namespace npusim::cpu::NPUSIM_ISA
