// Rows of W as a checkpoint stores them: the `Source` (tile.h, few_rows.h) of linear.
#pragma once
#include "kernels/metal/matmul/epilogue.h"

namespace npusim {
typedef Storage<params.w_dtype> Weight;
}

#include "kernels/metal/matmul/linear_operands.h"

namespace npusim {

struct Source {
  typedef RowsOfX::Row Row;
  struct Column {
    device const Weight* w;
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
    column.end = params.k;
    column.w = w[0] + row * params.ldw[0];
    int64_t first = 0;
    for (int i = 1; i < NPUSIM_SEGMENTS; ++i) {
      first += params.rows[i - 1];
      if (row >= first) column.w = w[i] + (row - first) * params.ldw[i];
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
    load_four(column.w + k, column.end - k, to);
  }
  // Neighbours in K are always in memory.
  Staged a(Row row, int64_t k) const { return static_cast<Staged>(row.x[k]); }
  Staged b(Column column, int64_t k) const { return static_cast<Staged>(column.w[k]); }
  float scale(int64_t) const { return 1.0f; }
};

}  // namespace npusim

#include "kernels/metal/matmul/linear_entry.h"
