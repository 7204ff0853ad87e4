// y = act(x · Wᵀ + bias + residual), or its gated form, over rows of W as a checkpoint stores them.
//
// A task is a cell: a block of rows of x by a span of rows of W. Few rows of x wait for W, which is
// streamed once, four rows at a time. Many rows pass over a span of W that stays in the second
// cache, K cut so that a tile's rows of x stay in the first. Both add an element's products in the
// order of dot_tile, so a row of y does not depend on how many others there are.
#include "kernels/cpu/linear_finish.h"
#include "kernels/cpu/linear_stream.h"
#include "kernels/cpu/storage.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
extern const KernelEntry linear_kernel;
}
#endif

namespace npusim::cpu::NPUSIM_ISA {
namespace {

constexpr int64_t kWideSpan = 64;                // columns of a cell of many rows
constexpr int64_t kNarrowSpan = 16;              // … where there are few columns to share
constexpr int64_t kTasks = 48;                   // tasks beyond this serve nobody
constexpr int64_t kStreamed = int64_t{1} << 16;  // bytes of W that a task of few rows streams
constexpr int64_t kMaxSpan = 1024;

// Whether x is multiplied where it lies; it is widened to float a cell at a time otherwise.
bool in_place(const abi::LinearParams& p) {
  constexpr int32_t kBfloat16 = static_cast<int32_t>(abi::DType::kBfloat16);
  return p.x_dtype == 0 || (kDotsBfloat16 && p.x_dtype == kBfloat16 && p.w_dtype == kBfloat16);
}

// Rows that are widened for every span are few where they are long.
bool has_few_rows(const abi::LinearParams& p) {
  return p.m <= (in_place(p) || p.k <= kShortRow ? kStreamRows : kDotTileRows);
}

// How the linear is cut. A function of the parameters alone.
struct Plan {
  int64_t row_block, span, row_blocks, spans, block_k;

  explicit Plan(const abi::LinearParams& p) {
    row_block = row_block_of(p.m);
    row_blocks = (p.m + row_block - 1) / row_block;
    span = kWideSpan;
    block_k = kSumK;
    if (has_few_rows(p)) {
      const int64_t bytes = std::clamp<int64_t>(p.k, 1, kStreamed) * element_size(p.w_dtype);
      span = std::clamp<int64_t>(kStreamed / bytes, kTileColumns, kMaxSpan);
      span = span / kTileColumns * kTileColumns;
      block_k = std::max<int64_t>(p.k, 1);
    } else {
      while (span > kNarrowSpan && p.n / span * row_blocks < kTasks) span /= 2;
    }
    spans = p.n / span + (p.n % span != 0);
  }
  int64_t count() const { return row_blocks * spans; }
};

struct Scratch {
  Arena arena;
  int64_t *y_rows, *r_rows;
  CellSums sums;
  float* widened;

  Scratch(const abi::LinearParams& p, const Plan& plan, void* base)
      : arena(base),
        y_rows(arena.take<int64_t>(plan.row_block)),
        r_rows(arena.take<int64_t>(plan.row_block)),
        sums(arena, plan.row_block, plan.span, weight_rows(p)),
        widened(arena.take<float>(
            in_place(p) || p.m == 0 ? 0 : plan.row_block * std::min(plan.block_k, p.k))) {}
};

int64_t tasks(const void* params, int64_t) {
  return Plan(*static_cast<const abi::LinearParams*>(params)).count();
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const abi::LinearParams*>(params);
  return Scratch(p, Plan(p), nullptr).arena.bytes();
}

// The rows of W, which lie in up to kLinearSegments places.
template <typename W>
class StoredRows {
 public:
  StoredRows(const abi::LinearParams& p, void* const* operands) : p_(p), operands_(operands) {}
  const W* operator[](int64_t row) const {
    int32_t i = 0;
    for (; row >= p_.rows[i]; ++i) row -= p_.rows[i];
    return static_cast<const W*>(operands_[1 + i]) + row * p_.ldw[i];
  }

 private:
  const abi::LinearParams& p_;
  void* const* operands_;
};

// Rows [row, row + rows) of x by columns [column, column + columns) of y.
struct Cell {
  int64_t row, rows, column, columns;
};

template <typename X, typename W>
class LinearGemm {
 public:
  LinearGemm(const abi::LinearParams& p, const KernelCall& call, const Plan& plan, const Scratch& s)
      : p_(p), plan_(plan), s_(s), x_(call.operands[0]), w_(p, call.operands) {}

  void multiply(const Cell& cell) const {
    for (int64_t k = 0; k == 0 || k < p_.k; k += plan_.block_k) {
      int64_t x_row;
      const int64_t depth = std::min(plan_.block_k, p_.k - k);
      const X* x = rows_of_x(cell, k, depth, &x_row);
      for (int64_t part = 0; part < weight_rows(p_); ++part) {
        DotTile<X, W> tile{.x = x,
                           .x_row = x_row,
                           .w = {},
                           .soon = {},
                           .k = depth,
                           .sums = nullptr,
                           .sums_row = s_.sums.stride(),
                           .add = k > 0};
        const Pass pass{part, cell.column, k};
        has_few_rows(p_) ? stream(cell, pass, tile) : revisit(cell, pass, tile);
      }
    }
  }

 private:
  // Where a walk over the columns of a cell begins.
  struct Pass {
    int64_t part, column, k;
  };
  // The walk that follows, in this cell or the next.
  Pass after(const Cell& cell, const Pass& pass) const {
    if (pass.part + 1 < weight_rows(p_)) return {pass.part + 1, cell.column, pass.k};
    const int64_t k = pass.k + plan_.block_k;
    if (k < p_.k) return {0, cell.column, k};
    return {0, cell.column + cell.columns, 0};
  }

  // Few rows: W is read once, and the rows to come are fetched meanwhile.
  void stream(const Cell& cell, const Pass& pass, DotTile<X, W>& tile) const {
    point_at(pass, 0, tile.w);
    for (int64_t c = 0; c < cell.columns; c += kTileColumns) {
      if (c + kTileColumns < cell.columns) {
        point_at(pass, c + kTileColumns, tile.soon);
      } else {
        point_at(after(cell, pass), 0, tile.soon);
      }
      tile.sums = s_.sums.at(pass.part, 0, c);
      stream_tile(cell.rows, tile);
      std::copy_n(tile.soon, kTileColumns, tile.w);
    }
  }

  // Many rows: each tile of x walks over the columns, the last ones fetching those of the walk
  // that follows.
  void revisit(const Cell& cell, const Pass& pass, DotTile<X, W>& tile) const {
    const Pass next = after(cell, pass);
    const X* x = tile.x;
    for (int64_t row = 0; row < cell.rows; row += kDotTileRows) {
      const int64_t left = (cell.rows - row - 1) / kDotTileRows;
      tile.x = x + row * tile.x_row;
      for (int64_t c = 0; c < cell.columns; c += kTileColumns) {
        point_at(pass, c, tile.w);
        tile.soon[0] = left < kTileColumns ? row_of(next, c + left) : tile.w[0];
        tile.sums = s_.sums.at(pass.part, row, c);
        dot_tile(std::min<int64_t>(kDotTileRows, cell.rows - row), tile);
      }
    }
  }

  // The row of W for the column `column` after the first; the last one where there are no more.
  const W* row_of(const Pass& pass, int64_t column) const {
    return w_[pass.part * p_.n + std::min(pass.column + column, p_.n - 1)] + pass.k;
  }
  void point_at(const Pass& pass, int64_t column, const W* (&rows)[kTileColumns]) const {
    for (int64_t c = 0; c < kTileColumns; ++c) rows[c] = row_of(pass, column + c);
  }

  const X* rows_of_x(const Cell& cell, int64_t k, int64_t depth, int64_t* stride) const {
    *stride = p_.ldx;
    if (in_place(p_)) return static_cast<const X*>(x_) + cell.row * p_.ldx + k;
    *stride = std::min(plan_.block_k, p_.k);
    if constexpr (std::is_same_v<X, float>) {
      with_float_type(p_.x_dtype, [&]<typename From>(From) {
        for (int64_t r = 0; r < cell.rows; ++r) {
          const From* from = static_cast<const From*>(x_) + (cell.row + r) * p_.ldx + k;
          float* to = s_.widened + r * *stride;
          for (int64_t i = 0; i < depth; i += kLanes) {
            store_lanes(to + i, load_lanes(from + i, depth - i), depth - i);
          }
        }
      });
      return s_.widened;
    }
    return nullptr;
  }

  const abi::LinearParams& p_;
  const Plan& plan_;
  const Scratch& s_;
  const void* x_;
  StoredRows<W> w_;
};

template <typename F>
void with_types([[maybe_unused]] const abi::LinearParams& p, F&& f) {
#ifdef NPUSIM_BASE_ISA
  f(bfloat16{}, bfloat16{});  // run() takes the others from the set below
#else
  if (in_place(p) && p.x_dtype != 0) return f(bfloat16{}, bfloat16{});
  with_float_type(p.w_dtype, [&](auto w) { f(float{}, w); });
#endif
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const abi::LinearParams*>(call.params);
#ifdef NPUSIM_BASE_ISA
  // All that this set adds are dot products of bfloat16; plan and scratch of others are the same.
  if (p.x_dtype == 0 || !in_place(p)) return NPUSIM_BASE_ISA::linear_kernel.run(call);
#endif
  const Plan plan(p);
  const Scratch s(p, plan, call.scratch);
  Output out = make_output(p, call.operands, p.n, static_cast<size_t>(p.segments));
  out.y_rows = s.y_rows;
  out.r_rows = s.r_rows;
  for (int64_t i = call.begin; i < call.end; ++i) {
    const int64_t row = i % plan.row_blocks * plan.row_block,
                  column = i / plan.row_blocks * plan.span;
    const Cell cell{row, std::min(plan.row_block, p.m - row), column,
                    std::min(plan.span, p.n - column)};
    with_types(p, [&]<typename X, typename W>(X, W) {
      LinearGemm<X, W>(p, call, plan, s).multiply(cell);
    });
    for (int64_t r = 0; r < cell.rows; ++r) {
      s.y_rows[r] = (row + r) * p.ldy;
      if (p.residual) s.r_rows[r] = (row + r) * p.ldr;
    }
    if (p.gated) {
      finish_gated(out, 0, cell.rows, column, cell.columns, s.sums, p.n);
    } else {
      finish(out, 0, cell.rows, column, cell.columns, s.sums.at(0, 0, 0), s.sums.stride());
    }
  }
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const abi::LinearParams*>(c.params);
  if (const char* why = check_around_weights(c, p)) return why;
  if (!is_float(p.w_dtype)) return "the weights are not floats of 32 or 16 bits";
  for (int32_t i = 0; i < p.segments; ++i) {
    const Region rows = Region().dim(p.rows[i], p.ldw[i]).dim(p.k, 1);
    if (const char* why = rows.reads(c, static_cast<size_t>(1 + i), element_size(p.w_dtype)))
      return why;
  }
  return nullptr;
}

int in_place(const void* params, int read) {
  const auto& p = *static_cast<const abi::LinearParams*>(params);
  return in_place_of_residual(p, read, static_cast<size_t>(p.segments));
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const abi::LinearParams*>(params);
  return saturated({p.m, weight_rows(p), p.n, p.k});
}

}  // namespace

extern const KernelEntry linear_kernel;
const KernelEntry linear_kernel = {"linear",
                                   abi::LinearParams::kSchema,
                                   sizeof(abi::LinearParams),
                                   run,
                                   check,
                                   tasks,
                                   scratch,
                                   nullptr,
                                   in_place,
                                   work};

}  // namespace npusim::cpu::NPUSIM_ISA
