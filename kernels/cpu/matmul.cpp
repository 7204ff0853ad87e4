// y = alpha * a·b over batches, for operands that exist only at run time, with any strides.
// float32 operands are multiplied where they lie when their strides allow; otherwise, and for
// 16-bit storage, blocks become rows of float in scratch first. float64 and integers take a plain
// blocked loop.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/distinct.h"
#include "kernels/cpu/dot_rows.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/scratch.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::MatmulParams;

constexpr int64_t kRows = 192, kColumns = 256, kDepth = 256;  // of a block
constexpr int64_t kPanel = kPanelVectors * kLanes;

// How a command is cut: one block of rows and columns of one batch item after another; a task
// takes as many as make it worth while.
struct Plan {
  int64_t row_blocks, column_blocks;
  int64_t total, per_task;

  explicit Plan(const Params& p) {
    constexpr double kTaskWork = 1 << 17;
    row_blocks = (p.m + kRows - 1) / kRows;
    column_blocks = (p.n + kColumns - 1) / kColumns;
    total = row_blocks * column_blocks;
    for (const int64_t size : p.batch) total *= size;
    const double work = static_cast<double>(std::min(p.m, kRows)) *
                        static_cast<double>(std::min(p.n, kColumns)) * static_cast<double>(p.k);
    per_task = std::max<int64_t>(1, static_cast<int64_t>(kTaskWork / (work + 1)));
  }
  int64_t tasks() const { return (total + per_task - 1) / per_task; }
};

// One block of y: offsets of its first row of a, column of b and element of y.
struct Cell {
  int64_t a = 0, b = 0, y = 0;
  int64_t rows, columns;

  Cell(const Params& p, const Plan& plan, int64_t index) {
    const int64_t column = index % plan.column_blocks * kColumns;
    index /= plan.column_blocks;
    const int64_t row = index % plan.row_blocks * kRows;
    index /= plan.row_blocks;
    for (int d = 5; d >= 0 && index > 0; --d) {
      const int64_t i = index % p.batch[d];
      index /= p.batch[d];
      a += i * p.a_batch[d];
      b += i * p.b_batch[d];
      y += i * p.y_batch[d];
    }
    rows = std::min(kRows, p.m - row);
    columns = std::min(kColumns, p.n - column);
    a += row * p.a_m;
    b += column * p.b_n;
    y += row * p.y_m + column;
  }
};

// What is worth packing, decided by strides and sizes alone.
struct Method {
  bool dots;      // few rows of a against rows of b along K
  int64_t depth;  // of a block
  bool a_in_place, b_in_place, y_in_place;

  explicit Method(const Params& p) {
    constexpr int64_t kStreamedDepth = 32;
    const bool floats = p.dtype == 0;
    dots = p.m <= kDotRows && p.b_k == 1 && p.b_n != 1;
    // A block read many times over becomes dense first: rows far apart evict each other's lines.
    const bool reread = p.m > 4 * product_rows(kPanelVectors) && p.n > 2 * kPanel;
    a_in_place = floats && !dots && (p.a_k == 1 || p.a_m == 1) && !(reread && p.k > kDepth);
    b_in_place = floats && p.b_n == 1 && !reread;
    // For few rows b only streams by: whole pages of it at a time.
    depth = p.m <= kDotRows && b_in_place ? kStreamedDepth : kDepth;
    y_in_place = floats && p.alpha == 1 && p.n % kLanes == 0 && !dots;
  }
};

struct Scratch {
  float *a, *b, *y;
  int64_t y_row;
  int64_t bytes;

  Scratch(const Params& p, const Method& method, void* base) {
    Arena arena(base);
    const int64_t rows = std::min(p.m, kRows);
    const int64_t columns = round_up(std::min(p.n, kColumns), kPanel);
    const int64_t depth = round_up(std::min(p.k, method.depth), kLanes);
    y_row = columns;
    a = arena.take<float>(method.a_in_place ? 0 : rows * depth);
    b = arena.take<float>(method.dots ? 0 : depth * (method.b_in_place ? kLanes : columns));
    y = arena.take<float>(method.y_in_place ? 0 : rows * columns);
    bytes = arena.bytes();
  }
};

template <typename T>
class FloatMatmul {
 public:
  FloatMatmul(const KernelCall& call, const Params& p)
      : p_(p), method_(p), s_(p, method_, call.scratch) {
    a_ = static_cast<const T*>(call.operands[0]);
    b_ = static_cast<const T*>(call.operands[1]);
    y_ = static_cast<T*>(call.operands[2]);
  }

  void run(const Cell& cell) {
    for (int64_t k = 0; k == 0 || k < p_.k; k += method_.depth) {
      const int64_t depth = std::min(method_.depth, p_.k - k);
      method_.dots ? dot(cell, k, depth) : multiply_depth(cell, k, depth);
    }
    if (!method_.y_in_place) store_block(cell);
  }

 private:
  // Columns beyond the last are computed with zeros; y in place has none.
  void multiply_depth(const Cell& cell, int64_t k, int64_t depth) {
    Product product = product_of(cell, k, depth);
    if (!method_.b_in_place) return multiply_packed(cell, k, product);
    const int64_t whole = cell.columns / kLanes;
    product.b_k = p_.b_k;
    if constexpr (std::is_same_v<T, float>) product.b = b_ + cell.b + k * p_.b_k;
    if (whole > 0) multiply(product, cell.rows, whole);
    const int64_t rest = cell.columns - whole * kLanes;
    if (rest == 0) return;
    copy_rows(b_block(cell, k, depth, whole * kLanes, rest), s_.b, kLanes);
    product.b = s_.b;
    product.b_k = kLanes;
    product.c += whole * kLanes;
    multiply(product, cell.rows, 1);
  }

  void multiply_packed(const Cell& cell, int64_t k, Product product) {
    float* c = product.c;
    for (int64_t column = 0; column < cell.columns; column += kPanel) {
      const int64_t width = std::min(kPanel, cell.columns - column);
      const int64_t vectors = (width + kLanes - 1) / kLanes;
      to_rows(b_block(cell, k, product.k, column, width), s_.b, vectors * kLanes);
      product.b = s_.b;
      product.b_k = vectors * kLanes;
      product.c = c + column;
      multiply(product, cell.rows, vectors);
    }
  }

  Product product_of(const Cell& cell, int64_t k, int64_t depth) {
    Product product{s_.a, round_up(depth, kLanes), 1, s_.b, 0, s_.y, s_.y_row, depth, k > 0};
    if constexpr (std::is_same_v<T, float>) {
      if (method_.y_in_place) {
        product.c = y_ + cell.y;
        product.c_row = p_.y_m;
      }
      if (method_.a_in_place) {
        product.a = a_ + cell.a + k * p_.a_k;
        product.a_row = p_.a_m;
        product.a_k = p_.a_k;
      }
    }
    if (!method_.a_in_place) pack_a(cell, k, depth);
    return product;
  }
  void pack_a(const Cell& cell, int64_t k, int64_t depth) {
    const StridedBlock<T> a{a_ + cell.a + k * p_.a_k, p_.a_m, p_.a_k, cell.rows, depth};
    to_rows(a, s_.a, round_up(depth, kLanes));
  }
  StridedBlock<T> b_block(const Cell& cell, int64_t k, int64_t depth, int64_t column,
                          int64_t width) {
    return {b_ + cell.b + k * p_.b_k + column * p_.b_n, p_.b_k, p_.b_n, depth, width};
  }

  void dot(const Cell& cell, int64_t k, int64_t depth) {
    pack_a(cell, k, depth);
    const DotRows dots{s_.a, round_up(depth, kLanes), p_.b_n, depth, s_.y, s_.y_row, k > 0};
    dot_rows(dots, cell.rows, b_ + cell.b + k, cell.columns);
  }

  void store_block(const Cell& cell) {
    for (int64_t r = 0; r < cell.rows; ++r) {
      T* y = y_ + cell.y + r * p_.y_m;
      for (int64_t c = 0; c < cell.columns; c += kLanes) {
        store_lanes(y + c, load(s_.y + r * s_.y_row + c) * p_.alpha, cell.columns - c);
      }
    }
  }

  const Params& p_;
  const Method method_;
  const Scratch s_;
  const T *a_, *b_;
  T* y_;
};

// float64 in itself; integers and bool in unsigned integers of 64 bits, which wrap.
template <typename T>
void multiply_plainly(const Params& p, const Cell& cell, const KernelCall& call) {
  using N = Number<T>;
  using Sum = std::conditional_t<std::is_same_v<N, double>, double, uint64_t>;
  constexpr int64_t kWidth = 32;
  const T* a = static_cast<const T*>(call.operands[0]) + cell.a;
  const T* b = static_cast<const T*>(call.operands[1]) + cell.b;
  T* y = static_cast<T*>(call.operands[2]) + cell.y;
  for (int64_t row = 0; row < cell.rows; ++row) {
    for (int64_t column = 0; column < cell.columns; column += kWidth) {
      const int64_t width = std::min(kWidth, cell.columns - column);
      Sum sums[kWidth] = {};
      for (int64_t k = 0; k < p.k; ++k) {
        const auto x = static_cast<Sum>(decode<N>(a[row * p.a_m + k * p.a_k]));
        const T* b_row = b + k * p.b_k + column * p.b_n;
        for (int64_t j = 0; j < width; ++j) {
          sums[j] += x * static_cast<Sum>(decode<N>(b_row[j * p.b_n]));
        }
      }
      const auto alpha = static_cast<Sum>(static_cast<N>(p.alpha));
      for (int64_t j = 0; j < width; ++j) {
        y[row * p.y_m + column + j] = encode<T>(static_cast<N>(sums[j] * alpha));
      }
    }
  }
}

template <typename F>
void for_each_cell(const KernelCall& call, F&& f) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Plan plan(p);
  const int64_t end = std::min(call.end * plan.per_task, plan.total);
  for (int64_t i = call.begin * plan.per_task; i < end; ++i) f(Cell(p, plan, i));
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  with_storage(p.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<Number<T>, float>) {
      FloatMatmul<T> matmul(call, p);
      for_each_cell(call, [&](const Cell& cell) { matmul.run(cell); });
    } else {
      for_each_cell(call, [&](const Cell& cell) { multiply_plainly<T>(p, cell, call); });
    }
  });
}

int64_t tasks(const void* params, int64_t) {
  return Plan(*static_cast<const Params*>(params)).tasks();
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return is_float(p.dtype) ? Scratch(p, Method(p), nullptr).bytes : 0;
}

const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 3)) return why;
  const int64_t size = element_size(p.dtype);
  if (size == 0) return "there is no such dtype";
  const bool whole = p.alpha == std::trunc(p.alpha) && std::abs(p.alpha) <= 0x1p31f;
  if (!is_float(p.dtype) && p.dtype != kFloat64 && !whole) return "alpha is not an integer";
  const Region a = Region().dims(p.batch, p.a_batch, 6).dim(p.m, p.a_m).dim(p.k, p.a_k);
  const Region b = Region().dims(p.batch, p.b_batch, 6).dim(p.k, p.b_k).dim(p.n, p.b_n);
  const Region y = Region().dims(p.batch, p.y_batch, 6).dim(p.m, p.y_m).dim(p.n, 1);
  if (const char* why = a.reads(c, 0, size)) return why;
  if (const char* why = b.reads(c, 1, size)) return why;
  if (const char* why = y.writes(c, 2, size)) return why;
  Digits digits;
  digits.dims(p.batch, p.y_batch, 6).dim(p.m, p.y_m).dim(p.n, 1);
  return digits.distinct() ? nullptr : kCollides;
}

}  // namespace

extern const KernelEntry matmul_kernel;
const KernelEntry matmul_kernel = {"matmul", Params::kSchema, sizeof(Params), run,
                                   check,    tasks,           scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
