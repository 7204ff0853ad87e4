// Rows of W as `quantize` writes them, whose codes become numbers of x's dtype: the `Source`
// (tile.h, few_rows.h) of quantized_linear. Sums of bytes are multiplied by their row's scale
// at the end.
#pragma once
#include "kernels/metal/matmul/epilogue.h"
#include "kernels/metal/quantization/quantized_layout.h"

namespace npusim {
typedef uint8_t Weight;
}

#include "kernels/metal/matmul/linear_operands.h"

namespace npusim {

struct Source {
  typedef RowsOfX::Row Row;
  struct Column {
    QuantizedRow w;
    int64_t end;
  };
  enum : int64_t { kColumns = params.n };
  enum : bool { kAlongK = true, kBAlongK = true };
  RowsOfX x;
  device const Weight* w[4];
  int64_t first_row, first_column;

  Row a_row(int row) const { return x.row(first_row + row); }
  Column w_row(int64_t row) const {
    Column column;
    column.end = kPaddedK;
    column.w = quantized_row(w[0], params.rows[0], row);
    int64_t first = 0;
    for (int i = 1; i < NPUSIM_SEGMENTS; ++i) {
      first += params.rows[i - 1];
      if (row >= first) column.w = quantized_row(w[i], params.rows[i], row - first);
    }
    return column;
  }
#if !NPUSIM_FEW
  Column b_column(int at) const {
    const int64_t output = first_column + output_of(at);
    if (output < params.n) return w_row(output + part_of(at) * params.n);
    Column none = w_row(0);
    none.end = 0;
    return none;
  }
#endif
  void a_four(Row row, int64_t k, thread Staged* to) const { RowsOfX::four(row, k, to); }
  void norm_four(int64_t k, thread Staged* to) const { x.norm_of_four(k, to); }
  void b_four(Column column, int64_t k, thread Staged* to) const {
    float numbers[4] = {};
    if (k < column.end) column.w.numbers(k, numbers);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[e] = static_cast<Staged>(k + e < params.k ? numbers[e] : 0.0f);
    }
  }
  // Neighbours in K are always in memory.
  Staged a(Row row, int64_t k) const { return static_cast<Staged>(row.x[k]); }
  Staged b(Column, int64_t) const { return static_cast<Staged>(0.0f); }
  float scale(int64_t column) const { return kBytes ? w_row(column).w.scale(0) : 1.0f; }
};

}  // namespace npusim

#include "kernels/metal/matmul/linear_entry.h"
