// y[i] = value, between any strides: rows of y's last dimension, split into pieces of about 64 KiB.
#include "kernels/cpu/check.h"
#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::FillParams;

constexpr int64_t kPieceBytes = 65536;

struct Rows {
  int64_t count = 1, size = 1, stride = 1;
};

Rows rows_of(const Params& p) {
  Rows rows;
  if (p.rank == 0) return rows;
  rows.size = p.shape[p.rank - 1];
  rows.stride = p.y_strides[p.rank - 1];
  rows.count = rows.size == 0 ? 0 : 1;
  for (int d = 0; d + 1 < p.rank; ++d) rows.count = p.shape[d] == 0 ? 0 : rows.count;
  for (int d = 0; rows.count != 0 && d + 1 < p.rank; ++d) rows.count *= p.shape[d];
  return rows;
}

// Rows of one task, or 1 when a row is long enough for tasks of its own.
struct Split {
  int64_t rows = 1, piece = 1, pieces = 1, tasks = 0;
};

Split split_of(const Params& p, const Rows& rows) {
  Split split;
  if (rows.count == 0) return split;
  const int64_t elements = kPieceBytes / p.element_size;
  split.piece = rows.size < elements ? rows.size : elements;
  split.pieces = (rows.size - 1) / split.piece + 1;
  split.rows = split.pieces > 1 ? 1 : elements / split.piece;
  split.tasks = ((rows.count - 1) / split.rows + 1) * split.pieces;
  return split;
}

template <typename T>
void fill_run(T* y, int64_t stride, int64_t n, T value) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) y[i] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) y[i * stride] = value;
  }
}

template <typename T>
void fill(const Params& p, T* y, int64_t begin, int64_t end) {
  const Rows rows = rows_of(p);
  const Split split = split_of(p, rows);
  T value;
  std::memcpy(&value, &p.value, sizeof value);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t column = task % split.pieces * split.piece;
    const int64_t left = rows.size - column, n = left < split.piece ? left : split.piece;
    const int64_t first = task / split.pieces * split.rows;
    const int64_t last = rows.count - first < split.rows ? rows.count : first + split.rows;
    for (int64_t row = first; row < last; ++row) {
      int64_t offset = column * rows.stride, rest = row;
      for (int d = p.rank - 2; d >= 0; --d) {
        offset += rest % p.shape[d] * p.y_strides[d];
        rest /= p.shape[d];
      }
      fill_run(y + offset, rows.stride, n, value);
    }
  }
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  void* y = call.operands[0];
  switch (p.element_size) {
    case 1:
      return fill(p, static_cast<uint8_t*>(y), call.begin, call.end);
    case 2:
      return fill(p, static_cast<uint16_t*>(y), call.begin, call.end);
    case 4:
      return fill(p, static_cast<uint32_t*>(y), call.begin, call.end);
    default:
      return fill(p, static_cast<uint64_t*>(y), call.begin, call.end);
  }
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 1)) return why;
  const int64_t size = p.element_size;
  if (size != 1 && size != 2 && size != 4 && size != 8) return "the element size is not 1, 2, 4, 8";
  if (p.rank < 0 || p.rank > abi::kRank) return "the rank is out of range";
  return Region().dims(p.shape, p.y_strides, p.rank).writes(c, 0, size);
}

int64_t count_tasks(const void* params, int64_t) {
  const Params& p = *static_cast<const Params*>(params);
  return split_of(p, rows_of(p)).tasks;
}

int64_t scratch(const void*) {
  return 0;
}

}  // namespace

extern const KernelEntry fill_kernel;
const KernelEntry fill_kernel = {"fill", Params::kSchema, sizeof(Params), run,
                                 check,  count_tasks,     scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
