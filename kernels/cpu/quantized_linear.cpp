// y = act(x · Wᵀ + bias + residual), and its gated form, over weights that `quantize` wrote: rows
// of int8 or int4 codes with scales, in one to four segments.
//
// Few rows of x become int16 and are multiplied with the codes as integers; for many, rows of the
// weight become numbers. Whatever is computed depends on the command alone, not on how tasks are
// cut or by whom they are run.
#include "kernels/cpu/linear_finish.h"
#include "kernels/cpu/quantized_dot.h"
#include "kernels/cpu/quantized_many.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::QuantizedLinearParams;

constexpr int64_t kTaskBytes = int64_t{1} << 18;  // of codes, of one part: long streams
constexpr int64_t kTaskColumns = 1024;
constexpr int64_t kLeastColumns = 96;
constexpr int64_t kManyColumns = 32;   // of a task of many rows: rows of W that are decoded at once
constexpr int64_t kBlockK = 1536;      // columns of K that are decoded at once
constexpr int64_t kFetchAhead = 2048;  // bytes of a stream of codes

QuantizedLayout layout_of(const Params& p, int64_t rows) {
  return {p.format, rows, p.k, p.group};
}

bool has_few_rows(const Params& p) {
  return p.m <= kFewRows;
}
// Whether the rows of the weight become bfloat16, and x is multiplied where it lies.
bool in_bfloat16(const Params& p) {
  return kDotsBfloat16 && p.x_dtype == static_cast<int32_t>(abi::DType::kBfloat16);
}

// Columns of a task: whole vectors. Few rows: in eighths of the whole, so that they can be shared.
int64_t columns_per_task(const Params& p) {
  if (!has_few_rows(p)) return kManyColumns;
  const int64_t codes = std::max<int64_t>(1, layout_of(p, 0).codes);
  const int64_t most = std::clamp<int64_t>(kTaskBytes / codes, kLeastColumns, kTaskColumns);
  const int64_t eighth = std::max<int64_t>(1, (p.n + 7) / 8), parts = (eighth + most - 1) / most;
  return ((eighth + parts - 1) / parts + 15) / 16 * 16;
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  return p.m == 0 ? 0 : (p.n + columns_per_task(p) - 1) / columns_per_task(p);
}

struct Scratch {
  Arena arena;
  int64_t rows;  // of x at a time
  CellSums sums;
  int64_t *y_rows, *r_rows;
  QuantizedRows x;  // few rows
  int64_t depth;    // many rows: how far apart rows of `decoded` and `widened` are
  float *decoded, *widened;

  Scratch(const Params& p, void* base)
      : arena(base),
        rows(has_few_rows(p) ? p.m : row_block_of(p.m)),
        sums(arena, rows, columns_per_task(p), weight_rows(p)),
        y_rows(arena.take<int64_t>(rows)),
        r_rows(arena.take<int64_t>(rows)),
        x(layout_of(p, 0), has_few_rows(p) ? rows : 0, arena),
        depth(std::min(kBlockK, x.k)),
        decoded(arena.take<float>(has_few_rows(p) ? 0 : kManyColumns * depth)),
        widened(arena.take<float>(has_few_rows(p) || p.x_dtype == 0 ? 0 : rows * depth)) {}
};

int64_t scratch(const void* params) {
  return Scratch(*static_cast<const Params*>(params), nullptr).arena.bytes();
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
    Vec lanes[kFewRows][kLanes];
    for (int64_t j = 0; j < kSumRun; ++j) {
      const QuantizedRow w[] = {streams[0].now(), streams[1].now(), streams[2].now(),
                                streams[3].now()};
      for (int64_t r = 0; r < rows; r += kDotBatch) {
        const int64_t batch = std::min<int64_t>(kDotBatch, rows - r);
        dot_tile(p.format, p.group, batch, {w, s.x, r, kFetchAhead, &lanes[r][j]});
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

// x from element k on, in rows of T: where it lies, or widened in scratch.
template <typename T>
const T* rows_of_x(const Params& p, const void* x, int64_t row, int64_t rows, int64_t k,
                   int64_t depth, const Scratch& s, int64_t* stride) {
  *stride = p.ldx;
  if (p.x_dtype == 0 || in_bfloat16(p)) return static_cast<const T*>(x) + row * p.ldx + k;
  if constexpr (std::is_same_v<T, float>) {
    with_float_type(p.x_dtype, [&]<typename X>(X) {
      for (int64_t r = 0; r < rows; ++r) {
        const X* from = static_cast<const X*>(x) + (row + r) * p.ldx + k;
        for (int64_t i = 0; i < depth; i += kLanes) {
          store_lanes(s.widened + r * s.depth + i, load_lanes(from + i, depth - i), depth - i);
        }
      }
    });
  }
  *stride = s.depth;
  return reinterpret_cast<const T*>(s.widened);
}

// The sums of rows [row, row + rows) of x by rows [first, first + columns) of W.
template <typename T>
void multiply_many(const Params& p, const Weight& weight, const Scratch& s, const void* x,
                   int64_t row, int64_t rows, int64_t first, int64_t columns) {
  T* decoded = reinterpret_cast<T*>(s.decoded);
  for (int64_t k = 0; k == 0 || k < p.k; k += kBlockK) {
    const int64_t depth = std::min(kBlockK, p.k - k), stored = std::min(kBlockK, s.x.k - k);
    int64_t x_row;
    const T* from = rows_of_x<T>(p, x, row, rows, k, depth, s, &x_row);
    for (int64_t part = 0; part < weight_rows(p); ++part) {
      for (int64_t c = 0; c < columns; ++c) {
        const QuantizedRow w = weight.row(part * p.n + first + c);
        T* to = decoded + c * s.depth;
        if (p.format == kInt8) {
          decode_int8(w, k, stored, to);
        } else {
          decode_int4(w, p.format == kInt4Asymmetric, p.group, k, stored, to);
        }
      }
      multiply_decoded(from, x_row, rows, decoded, s.depth, columns, depth, k > 0, s.sums, part);
    }
  }
  for (int64_t part = 0; p.format == kInt8 && part < weight_rows(p); ++part) {
    float scales[kManyColumns];
    for (int64_t c = 0; c < columns; ++c) scales[c] = *weight.row(part * p.n + first + c).scale;
    for (int64_t r = 0; r < rows; ++r) {
      float* sums = s.sums.at(part, r, 0);
      for (int64_t c = 0; c < columns; ++c) sums[c] *= scales[c];
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
  const void* x = call.operands[0];
  if (has_few_rows(p) && call.first) {
    with_float_type(p.x_dtype, [&]<typename X>(X) {
      quantize_rows(static_cast<const X*>(x), p.ldx, p.k, p.m, p.format, s.x);
    });
  }
  const int64_t span = columns_per_task(p);
  for (int64_t first = call.begin * span; first < std::min(call.end * span, p.n); first += span) {
    const int64_t columns = std::min(span, p.n - first);
    for (int64_t row = 0; row < p.m; row += s.rows) {
      const int64_t rows = std::min(s.rows, p.m - row);
      if (has_few_rows(p)) {
        for (int64_t part = 0; part < weight_rows(p); ++part) {
          multiply(p, weight, s, rows, part, first, columns);
        }
      } else if (in_bfloat16(p)) {
        multiply_many<bfloat16>(p, weight, s, x, row, rows, first, columns);
      } else {
        multiply_many<float>(p, weight, s, x, row, rows, first, columns);
      }
      for (int64_t r = 0; r < rows; ++r) {
        s.y_rows[r] = (row + r) * p.ldy;
        s.r_rows[r] = p.residual ? (row + r) * p.ldr : 0;
      }
      if (p.gated) {
        finish_gated(out, 0, rows, first, columns, s.sums, p.n);
      } else {
        finish(out, 0, rows, first, columns, s.sums.at(0, 0, 0), s.sums.stride());
      }
    }
  }
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
