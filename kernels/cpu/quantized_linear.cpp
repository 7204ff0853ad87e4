// y = act(x · Wᵀ + bias + residual), and its gated form, over weights that `quantize` wrote: rows
// of int8, float8 or int4 codes with scales, in one to four segments.
//
// Rows of x become int16 and are multiplied with the codes as integers: few of them as the codes
// stream by, many over codes that are widened once (float8 always so, and as floats). Both compute
// an element alike, so a row does not depend on how many others there are, how tasks are cut or by
// whom they are run.
#include "kernels/cpu/linear_finish.h"
#include "kernels/cpu/quantized_many.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::QuantizedLinearParams;

constexpr int64_t kTaskBytes = int64_t{1} << 18;  // of codes, of one part: long streams
constexpr int64_t kTaskColumns = 1024;
constexpr int64_t kLeastColumns = 96;
constexpr int64_t kManyRows = 48;      // of x that pass over the same widened codes
constexpr int64_t kFetchAhead = 2048;  // bytes of a stream of codes

QuantizedLayout layout_of(const Params& p, int64_t rows) {
  return {p.format, rows, p.k, p.group};
}

bool has_few_rows(const Params& p) {
  return p.m <= kStreamedRows && p.format != kFloat8;
}

// The int16 that codes of a row are widened to at once.
int64_t widened_row(const Params& p, int64_t k) {
  return std::min(kPanelDepth, p.format == kFloat8 ? 2 * k : k);
}

// How the linear is cut: a function of the parameters alone. Tasks go through the columns of a
// block of rows, then through the next block.
struct Plan {
  bool few;
  int64_t rows;  // of a block
  int64_t row_blocks = 1;
  int64_t columns = kPanelColumns;  // of a task: whole vectors
  int64_t column_blocks;

  explicit Plan(const Params& p) : few(has_few_rows(p)), rows(p.m) {
    if (few) {
      columns = columns_of_few(p);
    } else {  // as equal as can be
      rows = blocks_of(p.m, blocks_of(p.m, kManyRows));
      row_blocks = blocks_of(p.m, rows);
    }
    column_blocks = p.m == 0 ? 0 : blocks_of(p.n, columns);
  }
  int64_t count() const { return row_blocks * column_blocks; }

 private:
  static int64_t blocks_of(int64_t count, int64_t size) {
    return count / size + (count % size != 0);
  }

  // In eighths of the whole, so that they can be shared.
  static int64_t columns_of_few(const Params& p) {
    const int64_t codes = std::max<int64_t>(1, layout_of(p, 0).codes);
    const int64_t most = std::clamp<int64_t>(kTaskBytes / codes, kLeastColumns, kTaskColumns);
    const int64_t eighth = std::max<int64_t>(1, (p.n + 7) / 8), parts = (eighth + most - 1) / most;
    return ((eighth + parts - 1) / parts + 15) / 16 * 16;
  }
};

int64_t tasks(const void* params, int64_t) {
  return Plan(*static_cast<const Params*>(params)).count();
}

struct Scratch {
  Arena arena;
  CellSums sums;
  int64_t *y_rows, *r_rows;
  int64_t* block;    // the first row of x that is there as integers
  QuantizedRows x;   // a block
  int16_t* widened;  // many rows: codes of the task's columns
  Vec* totals;       // many rows: of the task's columns, row by row

  Scratch(const Params& p, const Plan& plan, void* base)
      : arena(base),
        sums(arena, plan.rows, plan.columns, weight_rows(p)),
        y_rows(arena.take<int64_t>(plan.rows)),
        r_rows(arena.take<int64_t>(plan.rows)),
        block(arena.take<int64_t>(1)),
        x(layout_of(p, 0), plan.rows, arena),
        widened(arena.take<int16_t>(plan.few ? 0 : kPanelColumns * widened_row(p, x.k))),
        totals(arena.take<Vec>(plan.few ? 0 : plan.rows * kPanelColumns)) {}
};

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return Scratch(p, Plan(p), nullptr).arena.bytes();
}

// The rows of all segments, one after another.
class Weight {
 public:
  Weight(const Params& p, void* const* segments) : p_(p), segments_(segments) {
    for (int i = 0; i < p.segments; ++i) {
      layouts_[i] = layout_of(p, p.rows[i]);
    }
  }
  QuantizedRow row(int64_t row) const { return row_and_rest(&row); }
  // The same; `row` becomes the number of rows after it that follow it in memory.
  QuantizedRow row_and_rest(int64_t* row) const {
    int i = 0;
    for (; *row >= p_.rows[i]; ++i) *row -= p_.rows[i];
    const QuantizedRow found{segments_[i], layouts_[i], *row};
    *row = p_.rows[i] - *row - 1;
    return found;
  }

 private:
  const Params& p_;
  void* const* segments_;
  QuantizedLayout layouts_[abi::kLinearSegments];
};

// Rows [first, end) of a weight, one after the other; then the last one again and again.
class RowStream {
 public:
  RowStream(const Weight& weight, int64_t first, int64_t end)
      : weight_(weight), row_(first), end_(end), rest_(first), now_(weight.row_and_rest(&rest_)) {}
  const QuantizedRow& now() const { return now_; }
  void advance(const QuantizedLayout& layout) {
    if (row_ + 1 >= end_) return;
    ++row_;
    if (--rest_ >= 0) return now_.advance(layout);
    rest_ = row_;
    now_ = weight_.row_and_rest(&rest_);
  }

 private:
  const Weight& weight_;
  int64_t row_, end_, rest_;
  QuantizedRow now_;
};

// Sums of rows [0, rows) of x in scratch by rows [first, first + columns) of W. These are walked as
// kDotColumns streams, each in the order it lies in, so that what is fetched ahead is nearly always
// what the same stream reads next.
void multiply(const Params& p, const Weight& weight, const Scratch& s, int64_t rows, int64_t part,
              int64_t first, int64_t columns) {
  const QuantizedLayout layout = layout_of(p, 0);
  const int64_t length = (columns + kLanes - 1) / kLanes * kSumRun;
  const int64_t from = part * p.n + first, end = from + columns;
  const auto stream = [&](int64_t i) {
    return RowStream(weight, std::min(from + i * length, end - 1), end);
  };
  RowStream streams[] = {stream(0), stream(1), stream(2), stream(3)};
  static_assert(std::size(streams) == kDotColumns);
  for (int64_t c = 0; c < length; c += kSumRun) {
    Vec lanes[kStreamedRows][kLanes];
    for (int64_t j = 0; j < kSumRun; ++j) {
      const QuantizedRow w[] = {streams[0].now(), streams[1].now(), streams[2].now(),
                                streams[3].now()};
      for (int64_t r = 0, count = 0; r < rows; r += count) {
        count = rows_together(p.format, rows - r);
        dot_tile({p.format, p.group}, count, {w, s.x, r, kFetchAhead, &lanes[r][j]});
      }
      for (RowStream& each : streams) each.advance(layout);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float sums[kLanes];
      store(sums, sum_each(lanes[r]));
      for (int64_t i = 0; i < kDotColumns; ++i) {
        std::copy_n(sums + i * kSumRun, kSumRun, s.sums.at(part, r, i * length + c));
      }
    }
  }
}

// The sums of rows [0, rows) of x in scratch by the same rows of W, which many rows of x pass over.
void multiply_many(const Params& p, const Weight& weight, const Scratch& s, int64_t rows,
                   int64_t part, int64_t first, int64_t columns) {
  const auto row_of = [&](int64_t c) {
    return weight.row(part * p.n + first + std::min(c, columns - 1));
  };
  const int64_t stride = widened_row(p, s.x.k), most = panel_depth(p.format);
  for (int64_t k = 0; k == 0 || k < s.x.k; k += most) {
    const int64_t depth = std::min(most, s.x.k - k);
    for (int64_t c = 0; c < columns; ++c) {
      widen_row(p.format, row_of(c), k, depth, s.widened + c * stride);
    }
    for (int64_t c = 0; c < columns; c += kDotColumns) {
      const QuantizedRow w[] = {row_of(c), row_of(c + 1), row_of(c + 2), row_of(c + 3)};
      static_assert(std::size(w) == kDotColumns);
      PanelTile tile{s.x, 0, w, {}, k, depth, s.totals + c, kPanelColumns};
      for (int64_t i = 0; i < kDotColumns; ++i) {
        tile.codes[i] = s.widened + std::min(c + i, columns - 1) * stride;
      }
      for (; tile.row < rows; tile.row += kPanelTileRows) {
        tile.totals = s.totals + tile.row * kPanelColumns + c;
        panel_tile({p.format, p.group}, std::min<int64_t>(kPanelTileRows, rows - tile.row), tile);
      }
    }
  }
  for (int64_t c = 0; c < columns; c += kLanes) {
    float scales[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) scales[i] = has_bytes(p.format) ? *row_of(c + i).scale : 1;
    for (int64_t r = 0; r < rows; ++r) {
      Vec lanes[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        lanes[i] = c + i < columns ? s.totals[r * kPanelColumns + c + i] * scales[i] : Vec{};
      }
      store(s.sums.at(part, r, c), sum_each(lanes));
    }
  }
}

// One command's tasks on one worker.
class Product {
 public:
  Product(const KernelCall& call, const Params& p)
      : p_(p),
        plan_(p),
        s_(p, plan_, call.scratch),
        weight_(p, call.operands + 1),
        x_(call.operands[0]),
        out_(make_output(p, call.operands, p.n, static_cast<size_t>(p.segments))) {
    out_.y_rows = s_.y_rows;
    out_.r_rows = s_.r_rows;
    if (call.first) *s_.block = -1;
  }

  void run(int64_t task) {
    const int64_t first = task % plan_.column_blocks * plan_.columns;
    const int64_t columns = std::min(plan_.columns, p_.n - first);
    const int64_t row = task / plan_.column_blocks * plan_.rows;
    const int64_t rows = std::min(plan_.rows, p_.m - row);
    quantize(row, rows);
    const auto multiply_part = plan_.few ? multiply : multiply_many;
    for (int64_t part = 0; part < weight_rows(p_); ++part) {
      multiply_part(p_, weight_, s_, rows, part, first, columns);
    }
    finish_rows(row, rows, first, columns);
  }

 private:
  // Rows of x as integers, if scratch does not have these from an earlier task.
  void quantize(int64_t row, int64_t rows) {
    if (*s_.block == row) return;
    *s_.block = row;
    with_float_type(p_.x_dtype, [&]<typename X>(X) {
      const X* x = static_cast<const X*>(x_) + row * p_.ldx;
      quantize_rows(x, p_.ldx, p_.k, rows, p_.format, s_.x);
    });
  }

  void finish_rows(int64_t row, int64_t rows, int64_t first, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
      s_.y_rows[r] = (row + r) * p_.ldy;
      s_.r_rows[r] = p_.residual ? (row + r) * p_.ldr : 0;
    }
    if (p_.gated) return finish_gated(out_, 0, rows, first, columns, s_.sums, p_.n);
    finish(out_, 0, rows, first, columns, s_.sums.at(0, 0, 0), s_.sums.stride());
  }

  const Params& p_;
  const Plan plan_;
  const Scratch s_;
  const Weight weight_;
  const void* x_;
  Output out_;
};

void run(const KernelCall& call) {
  Product product(call, *static_cast<const Params*>(call.params));
  for (int64_t task = call.begin; task < call.end; ++task) product.run(task);
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_around_weights(c, p)) return why;
  for (int32_t i = 0; i < p.segments; ++i) {
    const QuantizedLayout layout = layout_of(p, p.rows[i]);
    if (const char* why = check_quantized(c, static_cast<size_t>(1 + i), layout)) return why;
  }
  return nullptr;
}

int in_place(const void* params, int read) {
  const auto& p = *static_cast<const Params*>(params);
  return in_place_of_residual(p, read, static_cast<size_t>(p.segments));
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({p.m + 1, weight_rows(p), p.n, p.k});  // 1: to decode the weights
}

}  // namespace

extern const KernelEntry quantized_linear_kernel;
const KernelEntry quantized_linear_kernel = {"quantized_linear",
                                             Params::kSchema,
                                             sizeof(Params),
                                             run,
                                             check,
                                             tasks,
                                             scratch,
                                             nullptr,
                                             in_place,
                                             work};

}  // namespace npusim::cpu::NPUSIM_ISA
