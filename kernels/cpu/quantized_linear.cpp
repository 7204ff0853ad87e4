// y = act(x · Wᵀ + bias + residual), and its gated form, over weights that `quantize` wrote: rows
// of int8 or int4 codes with scales, in one to four segments.
//
// Rows of x become int16 and are multiplied with the codes as integers. Whatever is computed
// depends on the command alone, not on how tasks are cut or by whom they are run.
#include "kernels/cpu/linear_finish.h"
#include "kernels/cpu/quantized_dot.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::QuantizedLinearParams;

constexpr int64_t kTaskBytes = int64_t{1} << 18;  // of codes: x is quantized again for each task
constexpr int64_t kTaskColumns = 1024;
constexpr int64_t kFetchAhead = int64_t{1} << 15;  // bytes, at least: whole tiles

QuantizedLayout layout_of(const Params& p, int64_t rows) {
  return {p.format, rows, p.k, p.group};
}

// Columns of a task: whole vectors.
int64_t columns_per_task(const Params& p) {
  const int64_t column_bytes = std::max<int64_t>(1, layout_of(p, 0).codes * weight_rows(p));
  return std::clamp<int64_t>(kTaskBytes / column_bytes / 16 * 16, 16, kTaskColumns);
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  return p.m == 0 ? 0 : (p.n + columns_per_task(p) - 1) / columns_per_task(p);
}

struct Scratch {
  Arena arena;
  QuantizedRows x;
  float* products;
  CellSums sums;
  int64_t *y_rows, *r_rows;

  Scratch(const Params& p, void* base)
      : arena(base),
        x(layout_of(p, 0), std::min(p.m, kFewRows), arena),
        products(arena.take<float>(kDotBatch * kDotColumns * x.group_stride + kLanes)),
        sums(arena, std::min(p.m, kFewRows), columns_per_task(p), weight_rows(p)),
        y_rows(arena.take<int64_t>(kFewRows)),
        r_rows(arena.take<int64_t>(kFewRows)) {}
};

int64_t scratch(const void* params) {
  return Scratch(*static_cast<const Params*>(params), nullptr).arena.bytes();
}

// The rows of all segments, one behind the other.
class Weight {
 public:
  Weight(const Params& p, void* const* segments) : p_(p), segments_(segments) {
    for (int i = 0; i < p.segments; ++i) {
      layouts_[i] = layout_of(p, p.rows[i]);
    }
  }
  int64_t codes() const { return layouts_[0].codes; }
  QuantizedRow row(int64_t row) const {
    int i = 0;
    for (; row >= p_.rows[i]; ++i) row -= p_.rows[i];
    return {segments_[i], layouts_[i], row};
  }

 private:
  const Params& p_;
  void* const* segments_;
  QuantizedLayout layouts_[abi::kLinearSegments];
};

// Sums of rows [0, rows) of x in scratch by rows [first, first + columns) of W.
void multiply(const Params& p, const Weight& weight, const Scratch& s, int64_t rows, int64_t part,
              int64_t first, int64_t columns) {
  const int64_t tile = std::max<int64_t>(1, kDotColumns * weight.codes());
  const int64_t ahead = (kFetchAhead + tile - 1) / tile * tile;
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t last = std::min<int64_t>(kLanes, columns - c) - 1;
    Vec lanes[kFewRows][kLanes];
    for (int64_t r = 0; last < kLanes - 1 && r < rows; ++r) std::fill_n(lanes[r], kLanes, Vec{});
    for (int64_t j = 0; j <= last; j += kDotColumns) {
      const int64_t at = part * p.n + first + c;  // the last row again where there are no more
      const QuantizedRow w[] = {weight.row(at + j), weight.row(at + std::min(j + 1, last)),
                                weight.row(at + std::min(j + 2, last)),
                                weight.row(at + std::min(j + 3, last))};
      static_assert(std::size(w) == kDotColumns);
      for (int64_t r = 0; r < rows; r += kDotBatch) {
        const int64_t batch = std::min<int64_t>(kDotBatch, rows - r);
        Vec dots[kDotBatch * kDotColumns];
        dot_tile(p.format, p.group, batch, {w, s.x, r, ahead, s.products, dots});
        for (int64_t i = 0; i < batch * kDotColumns; ++i) {
          lanes[r + i / kDotColumns][j + i % kDotColumns] = dots[i];
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) store(s.sums.at(part, r, c), sum_each(lanes[r]));
  }
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Scratch s(p, call.scratch);
  const Weight weight(p, call.operands + 1);
  Output out = make_output(p, call.operands, p.n, static_cast<size_t>(p.segments));
  out.y_rows = s.y_rows;
  out.r_rows = s.r_rows;
  for (int64_t row = 0; row < p.m; row += kFewRows) {
    const int64_t rows = std::min(kFewRows, p.m - row);
    for (int64_t r = 0; r < rows; ++r) {
      s.y_rows[r] = (row + r) * p.ldy;
      s.r_rows[r] = p.residual ? (row + r) * p.ldr : 0;
    }
    with_float_type(p.x_dtype, [&]<typename X>(X) {
      const X* x = static_cast<const X*>(call.operands[0]) + row * p.ldx;
      quantize_rows(x, p.ldx, p.k, rows, p.format, s.x);
    });
    for (int64_t task = call.begin; task < call.end; ++task) {
      const int64_t span = columns_per_task(p), first = task * span;
      const int64_t columns = std::min(span, p.n - first);
      for (int64_t part = 0; part < weight_rows(p); ++part) {
        multiply(p, weight, s, rows, part, first, columns);
      }
      if (p.gated) {
        finish_gated(out, 0, rows, first, columns, s.sums, p.n);
      } else {
        finish(out, 0, rows, first, columns, s.sums.at(0, 0, 0), s.sums.stride());
      }
    }
  }
}

const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_around_weights(c, p)) return why;
  for (int32_t i = 0; i < p.segments; ++i) {
    const QuantizedLayout layout = layout_of(p, p.rows[i]);
    if (const char* why = check_quantized(c, static_cast<size_t>(1 + i), layout)) return why;
  }
  return nullptr;
}

}  // namespace

extern const KernelEntry quantized_linear_kernel;
const KernelEntry quantized_linear_kernel = {
    "quantized_linear", Params::kSchema, sizeof(Params), run, check, tasks, scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
