// The operands of a matmul of few rows, or with NPUSIM_SWAPPED of few columns, which are rows of
// the transposed product: the other operand's columns stream by.
#pragma once
#include "kernels/metal/common/four.h"
#include "kernels/metal/matmul/matmul_output.h"

namespace npusim {

constant constexpr int64_t kFewRow = NPUSIM_SWAPPED ? params.b_n : params.a_m;
constant constexpr int64_t kFewK = NPUSIM_SWAPPED ? params.b_k : params.a_k;
constant constexpr int64_t kWideColumn = NPUSIM_SWAPPED ? params.a_m : params.b_n;
constant constexpr int64_t kWideK = NPUSIM_SWAPPED ? params.a_k : params.b_k;

// Four neighbours in K, zeros behind its end.
inline void load_along(device const T* from, int64_t stride, int64_t k, thread float* to) {
  if (stride == 1) return load_four(from + k, params.k - k, to);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    to[e] = k + e < params.k ? static_cast<float>(from[(k + e) * stride]) : 0.0f;
  }
}

struct FewSource {
  typedef device const T* Row;
  typedef device const T* Column;
  enum : int64_t { kColumns = NPUSIM_SWAPPED ? params.m : params.n };
  device const T* few;
  device const T* wide;

  Row a_row(int row) const { return few + row * kFewRow; }
  Column w_row(int64_t column) const { return wide + column * kWideColumn; }
  void a_four(Row row, int64_t k, thread float* to) const { load_along(row, kFewK, k, to); }
  void b_four(Column column, int64_t k, thread float* to) const {
    load_along(column, kWideK, k, to);
  }
  float a_at(int row, int64_t k) const {
    return static_cast<float>(few[row * kFewRow + k * kFewK]);
  }
  // A column at K, 0 where there is none.
  float b_at(int64_t column, int64_t k) const {
    if (column >= kColumns) return 0.0f;
    return static_cast<float>(wide[column * kWideColumn + k * kWideK]);
  }
};

// The output of the product as it is meant.
template <typename Output>
struct FewOutput {
  Output output;

  void put_at(int64_t row, int64_t column, float first, float second) const {
    if (NPUSIM_SWAPPED) {
      output.put_at(column, row, first, second);
    } else {
      output.put_at(row, column, first, second);
    }
  }
};

}  // namespace npusim
