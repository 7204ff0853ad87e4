// Where sums of matmul and grouped_matmul go.
#pragma once
#include "kernels/metal/matmul/sums.h"

namespace npusim {

typedef Storage<params.dtype> T;

// Sums of elements from a row and column of y on, up to `rows`.
struct MatmulOutput {
  device T* y;
  int64_t row, column, rows;

  static float scaled(float sum) { return sum * params.alpha; }
  static int64_t scaled(uint64_t sum) {
    return static_cast<int64_t>(sum * static_cast<uint64_t>(to_integer(params.alpha)));
  }
  void put_at(int64_t at_row, int64_t at_column, Sum sum, Sum) const {
    if (at_row >= rows || at_column >= params.n) return;
    y[at_row * params.y_m + at_column] = encode<T>(scaled(sum));
  }
  void put(int at_row, int at_column, Sum sum, Sum) const {
    put_at(row + at_row, column + at_column, sum, sum);
  }
};

}  // namespace npusim
