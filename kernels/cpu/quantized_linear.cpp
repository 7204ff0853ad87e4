// y = act(x · Wᵀ + bias + residual), and its gated form, over weights that `quantize` wrote: rows
// of int8 or int4 codes with scales, in one to four segments.
//
// Rows of x become int16 and are multiplied with the codes as integers. Whatever is computed
// depends on the command alone, not on how tasks are cut or by whom they are run.
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/quantized_dot.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::QuantizedLinearParams;

constexpr int64_t kTaskBytes = int64_t{1} << 18;  // of codes: x is quantized again for each task
constexpr int64_t kTaskColumns = 1024;

QuantizedLayout layout_of(const Params& p, int64_t rows) {
  return {p.format, rows, p.k, p.group};
}
int64_t halves(const Params& p) {
  return p.gated ? 2 : 1;
}

// Columns of a task: whole vectors.
int64_t columns_per_task(const Params& p) {
  const int64_t column_bytes = std::max<int64_t>(1, layout_of(p, 0).codes * halves(p));
  return std::clamp<int64_t>(kTaskBytes / column_bytes / 16 * 16, 16, kTaskColumns);
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  return p.m == 0 ? 0 : (p.n + columns_per_task(p) - 1) / columns_per_task(p);
}

struct Scratch {
  float *products, *sums;  // sums: [half][row][column]
  int64_t sums_row, sums_half;
  int64_t *y_rows, *r_rows;
  QuantizedRows x;
  int64_t bytes;

  Scratch(const Params& p, void* base) : x(layout_of(p, 0), std::min(p.m, kFewRows), base) {
    Arena arena(base);
    const int64_t rows = std::min(p.m, kFewRows);
    arena.take<std::byte>(x.bytes);
    products = arena.take<float>(kDotBatch * x.group_stride + kLanes);
    sums_row = columns_per_task(p);
    sums_half = rows * sums_row;
    sums = arena.take<float>(halves(p) * sums_half);
    y_rows = arena.take<int64_t>(rows);
    r_rows = arena.take<int64_t>(rows);
    bytes = arena.bytes();
  }
};

int64_t scratch(const void* params) {
  return Scratch(*static_cast<const Params*>(params), nullptr).bytes;
}

// The rows of all segments, one behind the other.
class Weight {
 public:
  Weight(const Params& p, void* const* segments) : p_(p), segments_(segments) {
    for (int i = 0; i < p.segments; ++i) {
      layouts_[i] = layout_of(p, p.rows[i]);
    }
  }
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

// sums[r][j] = x[r] · W[first + j] for rows of x in scratch and `columns` rows of W.
void multiply(const Params& p, const Weight& weight, const Scratch& s, int64_t rows, int64_t first,
              int64_t columns, float* sums) {
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, columns - c);
    Vec lanes[kFewRows][kLanes] = {};
    for (int64_t j = 0; j < count; ++j) {
      const QuantizedRow w = weight.row(first + c + j);
      for (int64_t r = 0; r < rows; r += kDotBatch) {
        Vec dots[kDotBatch];
        const auto batch = [&]<int R>(std::integral_constant<int, R>) {
          dot_row<R>(p.format, p.group, w, s.x, r, s.products, dots);
          for (int i = 0; i < R; ++i) lanes[r + i][j] = dots[i];
        };
        switch (rows - r) {
          case 1:
            batch(std::integral_constant<int, 1>{});
            break;
          case 2:
            batch(std::integral_constant<int, 2>{});
            break;
          case 3:
            batch(std::integral_constant<int, 3>{});
            break;
          default:
            batch(std::integral_constant<int, kDotBatch>{});
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) store(sums + r * s.sums_row + c, sum_each(lanes[r]));
  }
}

// Multiplies act(gate + bias) with up + bias of rows [0, rows).
void gate(const Output& out, const Scratch& s, int64_t rows, int64_t column, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    float* gates = s.sums + r * s.sums_row;
    const float* ups = gates + s.sums_half;
    for (int64_t c = 0; c < columns; c += kLanes) {
      Vec a = load(gates + c), b = load(ups + c);
      if (out.bias) {
        a += load_some(out.bias + column + c, columns - c);
        b += load_some(out.bias + out.columns + column + c, columns - c);
      }
      store(gates + c, activate(a, out) * b);
    }
  }
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Scratch s(p, call.scratch);
  const Weight weight(p, call.operands + 1);
  Output out = make_output(p, call.operands, p.n, static_cast<size_t>(p.segments));
  out.y_rows = s.y_rows;
  out.r_rows = s.r_rows;
  Output plain = out;  // what is left to do behind a gate
  plain.bias = nullptr;
  plain.act = abi::Opcode::kCopy;
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
      const int64_t first = task * s.sums_row, columns = std::min(s.sums_row, p.n - first);
      multiply(p, weight, s, rows, first, columns, s.sums);
      if (p.gated) {
        multiply(p, weight, s, rows, p.n + first, columns, s.sums + s.sums_half);
        gate(out, s, rows, first, columns);
      }
      finish(p.gated ? plain : out, 0, rows, first, columns, s.sums, s.sums_row);
    }
  }
}

const char* check_segments(const KernelCheck& c, const Params& p) {
  int64_t rows = 0;
  for (int i = 0; i < p.segments; ++i) {
    const QuantizedLayout layout = layout_of(p, p.rows[i]);  // which bounds the rows
    if (const char* why = check_quantized(c, 1 + static_cast<size_t>(i), layout)) return why;
    rows += p.rows[i];
  }
  const bool fits = p.n <= rows / halves(p) && p.n * halves(p) == rows;
  return fits ? nullptr : "the segments do not have as many rows as the result has columns";
}

const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (p.segments < 1 || p.segments > abi::kLinearSegments) return "there are not 1 to 4 segments";
  if (!is_flag(p.gated)) return "gated is neither 0 nor 1";
  if (p.gated && p.residual) return "a gated product has no residual";
  if (!is_float(p.x_dtype)) return "the input is not a float of 32 or 16 bits";
  if (p.m < 0 || p.n < 0) return "a size is negative or too large";
  if (const char* why = check_segments(c, p)) return why;
  const Region y = Region().dim(p.m, p.ldy).dim(p.n, 1);
  const Region residual = Region().dim(p.m, p.ldr).dim(p.n, 1);
  if (const char* why =
          check_epilogue(c, p, p.n * halves(p), y, residual, static_cast<size_t>(p.segments)))
    return why;
  return Region().dim(p.m, p.ldx).dim(p.k, 1).reads(c, 0, element_size(p.x_dtype));
}

}  // namespace

extern const KernelEntry quantized_linear_kernel;
const KernelEntry quantized_linear_kernel = {
    "quantized_linear", Params::kSchema, sizeof(Params), run, check, tasks, scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
