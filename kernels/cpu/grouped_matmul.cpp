// Matmuls of consecutive groups of a's rows, each with a b of its own: what the experts of a
// mixture compute. Where a group ends is data. A task has a block of rows and columns of y and
// finds the groups that its rows belong to, so what is written follows from the parameters alone;
// and a row does not depend on how many others its group has.
#include "kernels/cpu/matmul_cell.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::MatmulParams;

constexpr int kGroups = 5;  // the batch dimension that counts them
constexpr const char* kOneBatch = "there is a batch beside that of the groups";

// One block of y and the columns of every b that it needs.
struct Block {
  int64_t row, rows;
  int64_t column, columns;

  Block(const Params& p, int64_t index) {
    const int64_t column_blocks = matmul_blocks(p.n, kMatmulColumns);
    row = index / column_blocks * kMatmulRows;
    column = index % column_blocks * kMatmulColumns;
    rows = std::min(kMatmulRows, p.m - row);
    columns = std::min(kMatmulColumns, p.n - column);
  }
};

// Calls f(group, row, rows) for the parts of a block in order; group -1: after the last offset.
// An offset counts from the greatest before it on, so that every row has one part.
template <typename F>
void for_each_part(const Params& p, const int32_t* offsets, const Block& block, F&& f) {
  const int64_t last = block.row + block.rows;
  int64_t at = block.row;
  for (int64_t group = 0; group < p.batch[kGroups] && at < last; ++group) {
    const int64_t end = std::min<int64_t>(offsets[group], last);
    if (end <= at) continue;
    f(group, at, end - at);
    at = end;
  }
  if (at < last) f(-1, at, last - at);
}

// The same as `matmul` of so many rows.
Params of_rows(const Params& p, int64_t rows) {
  Params part = p;
  part.m = rows;
  part.batch[kGroups] = 1;
  return part;
}

template <typename T>
void run_block(const Params& p, const KernelCall& call, const Block& block) {
  const MatmulOperands operands{call.operands[0], call.operands[1], call.operands[3], call.scratch,
                                p.dtype};
  const auto* offsets = static_cast<const int32_t*>(call.operands[2]);
  for_each_part(p, offsets, block, [&](int64_t group, int64_t row, int64_t rows) {
    const int64_t to = row * p.y_m + block.column;
    if (group < 0) {
      T* y = static_cast<T*>(operands.y) + to;
      for (int64_t r = 0; r < rows; ++r) std::fill_n(y + r * p.y_m, block.columns, T{});
      return;
    }
    const Params part = of_rows(p, rows);
    const MatmulCell cell{row * p.a_m, group * p.b_batch[kGroups] + block.column * p.b_n, to, rows,
                          block.columns};
    if constexpr (std::is_same_v<Number<T>, float>) {
      FloatMatmul<T>(operands, part, DotProducts::kOfAnyRows).run(cell);
    } else {
      multiply_plainly<T>(part, cell, operands);
    }
  });
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  with_storage(p.dtype, [&](auto type) {
    for (int64_t i = call.begin; i < call.end; ++i) {
      run_block<decltype(type)>(p, call, Block(p, i));
    }
  });
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  return matmul_blocks(p.m, kMatmulRows) * matmul_blocks(p.n, kMatmulColumns);
}

// The most that any number of rows of a block needs.
int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  int64_t bytes = 0;
  for (int64_t rows = 1; is_float(p.dtype) && rows <= std::min(p.m, kMatmulRows); ++rows) {
    const Params part = of_rows(p, rows);
    bytes = std::max(
        bytes, MatmulScratch(part, MatmulMethod(part, DotProducts::kOfAnyRows), nullptr).bytes);
  }
  return bytes;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 4)) return why;
  if (const char* why = check_matmul_numbers(p)) return why;
  for (int d = 0; d < kGroups; ++d) {
    if (p.batch[d] != 1) return kOneBatch;
  }
  const int64_t groups = p.batch[kGroups], size = element_size(p.dtype);
  const Region a = Region().dim(p.m, p.a_m).dim(p.k, p.a_k);
  const Region b = Region().dim(groups, p.b_batch[kGroups]).dim(p.k, p.b_k).dim(p.n, p.b_n);
  const Region y = Region().dim(p.m, p.y_m).dim(p.n, 1);
  if (const char* why = a.reads(c, 0, size)) return why;
  if (const char* why = b.reads(c, 1, size)) return why;
  if (const char* why = Region().dim(groups, 1).reads(c, 2, sizeof(int32_t))) return why;
  return y.writes(c, 3, size);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({p.m, p.n, p.k});
}

}  // namespace

extern const KernelEntry grouped_matmul_kernel;
const KernelEntry grouped_matmul_kernel = {
    "grouped_matmul", Params::kSchema, sizeof(Params), run, check, tasks,
    scratch,          nullptr,         nullptr,        work};

}  // namespace npusim::cpu::NPUSIM_ISA
