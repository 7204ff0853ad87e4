// What follows the sums of `linear` and `quantized_linear`: the epilogue of any linear, or the
// gated one, y = act(gate + bias) * (up + bias).
#pragma once

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/scratch.h"

namespace npusim::cpu::NPUSIM_ISA {

// Rows of W that one column of y needs.
template <typename Params>
inline int64_t weight_rows(const Params& p) {
  return p.gated ? 2 : 1;
}

// The sums of a cell: rows of y by a span of columns, once, or twice when gated (gate, then up).
class CellSums {
 public:
  CellSums(Arena& arena, int64_t rows, int64_t columns, int64_t parts)
      : stride_((columns + kLanes - 1) / kLanes * kLanes),
        part_(rows * stride_),
        data_(arena.take<float>(rows * stride_ * parts)) {}

  int64_t stride() const { return stride_; }
  float* at(int64_t part, int64_t row, int64_t column) const {
    return data_ + part * part_ + row * stride_ + column;
  }

 private:
  int64_t stride_, part_;
  float* data_;
};

// Finishes rows [row, row + rows) of `out`, columns [column, column + columns), `up` columns of
// bias apart.
inline void finish_gated(const Output& out, int64_t row, int64_t rows, int64_t column,
                         int64_t columns, const CellSums& sums, int64_t up) {
  const float* bias = out.bias ? out.bias + column : nullptr;
  with_float_type(out.y_dtype, [&]<typename Y>(Y) {
    for (int64_t r = 0; r < rows; ++r) {
      Y* y = static_cast<Y*>(out.y) + out.y_rows[row + r] + column;
      float* gate = sums.at(0, r, 0);
      for (int64_t c = 0; bias && c < columns; c += kLanes) {
        store(gate + c, load(gate + c) + load_some(bias + c, columns - c));
      }
      activate(out, gate, (columns + kLanes - 1) / kLanes * kLanes);
      for (int64_t c = 0; c < columns; c += kLanes) {
        const int64_t n = columns - c;
        Vec value = load(sums.at(1, r, c));
        if (bias) value += load_some(bias + up + c, n);
        value *= load(gate + c);
        if (n >= kLanes) {
          store(y + c, value);
        } else {
          store_part(y + c, value, n);
        }
      }
    }
  });
}

// check() of the operands around the weights: `weights` parts of B, epilogue and y.
template <typename Params>
inline const char* check_around_weights(const KernelCheck& c, const Params& p) {
  if (!is_flag(p.gated)) return "gated is neither 0 nor 1";
  if (p.gated && p.residual) return "a gated linear takes no residual";
  if (p.segments < 1 || p.segments > abi::kLinearSegments) return "the segments are not 1 to 4";
  if (!is_float(p.x_dtype)) return "the input is not a float of 32 or 16 bits";
  int64_t total = 0, expected = 0;
  if (p.n < 0 || __builtin_mul_overflow(p.n, weight_rows(p), &expected))
    return "a size is negative or too large";
  for (int32_t i = 0; i < p.segments; ++i) {
    if (p.rows[i] < 0 || __builtin_add_overflow(total, p.rows[i], &total))
      return "a size is negative or too large";
  }
  if (total != expected) return "the segments do not have as many rows as the result needs";
  const Region y = Region().dim(p.m, p.ldy).dim(p.n, 1);
  const Region residual = Region().dim(p.m, p.ldr).dim(p.n, 1);
  const auto weights = static_cast<size_t>(p.segments);
  if (const char* why = check_epilogue(c, p, expected, y, residual, weights)) return why;
  return Region().dim(p.m, p.ldx).dim(p.k, 1).reads(c, 0, element_size(p.x_dtype));
}

}  // namespace npusim::cpu::NPUSIM_ISA
