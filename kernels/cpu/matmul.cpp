// y = alpha * a·b over batches, for operands that exist only at run time, with any strides; how a
// block of y is computed, matmul_cell.h says.
#include "kernels/cpu/matmul_cell.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::MatmulParams;

// How a command is cut: one block of rows and columns of one batch item after another, blocks as
// equal as can be; a task takes as many as make it worth while.
struct Plan {
  int64_t rows = 1, columns = 1;  // of a block
  int64_t row_blocks, column_blocks;
  int64_t total, per_task = 1;

  explicit Plan(const Params& p) {
    constexpr double kTaskWork = 1 << 17;
    constexpr double kFewRows = 4;  // fewer still wait for b as long as these
    constexpr int64_t kBlocks = 8;  // as many need not be alike
    row_blocks = matmul_blocks(p.m, kMatmulRows);
    column_blocks = matmul_blocks(p.n, kMatmulColumns);
    int64_t items = row_blocks;
    for (const int64_t size : p.batch) items *= size;
    total = items * column_blocks;
    if (total <= 0) return;
    rows = matmul_blocks(p.m, row_blocks);
    const double item = std::max(static_cast<double>(rows), kFewRows) * static_cast<double>(p.n) *
                        static_cast<double>(p.k);
    const double work = item * static_cast<double>(items);
    if (items < kBlocks) {
      const int64_t blocks = static_cast<int64_t>(std::min(work / kTaskWork, double{kBlocks}));
      column_blocks = std::max(column_blocks, matmul_blocks(blocks / 2 * 2, items));
    }
    columns = matmul_blocks(matmul_blocks(p.n, column_blocks), kLanes) * kLanes;
    column_blocks = matmul_blocks(p.n, columns);
    total = items * column_blocks;
    const double tasks = std::clamp(work / kTaskWork, 1.0, static_cast<double>(total));
    per_task = matmul_blocks(total, static_cast<int64_t>(tasks));
  }
  int64_t tasks() const { return matmul_blocks(total, per_task); }
};

MatmulCell cell_at(const Params& p, const Plan& plan, int64_t index) {
  const int64_t column = index % plan.column_blocks * plan.columns;
  index /= plan.column_blocks;
  const int64_t row = index % plan.row_blocks * plan.rows;
  index /= plan.row_blocks;
  MatmulCell cell{row * p.a_m, column * p.b_n, row * p.y_m + column, std::min(plan.rows, p.m - row),
                  std::min(plan.columns, p.n - column)};
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

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const MatmulOperands operands{call.operands[0], call.operands[1], call.operands[2], call.scratch};
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

int64_t tasks(const void* params, int64_t) {
  return Plan(*static_cast<const Params*>(params)).tasks();
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return is_float(p.dtype) ? MatmulScratch(p, MatmulMethod(p), nullptr).bytes : 0;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 3)) return why;
  if (const char* why = check_matmul_numbers(p)) return why;
  const int64_t size = element_size(p.dtype);
  const Region a = Region().dims(p.batch, p.a_batch, 6).dim(p.m, p.a_m).dim(p.k, p.a_k);
  const Region b = Region().dims(p.batch, p.b_batch, 6).dim(p.k, p.b_k).dim(p.n, p.b_n);
  const Region y = Region().dims(p.batch, p.y_batch, 6).dim(p.m, p.y_m).dim(p.n, 1);
  if (const char* why = a.reads(c, 0, size)) return why;
  if (const char* why = b.reads(c, 1, size)) return why;
  return y.writes(c, 2, size);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({saturated(p.batch, 6), p.m, p.n, p.k});
}

}  // namespace

extern const KernelEntry matmul_kernel;
const KernelEntry matmul_kernel = {"matmul", Params::kSchema, sizeof(Params), run,     check,
                                   tasks,    scratch,         nullptr,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
