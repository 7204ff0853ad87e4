// Where a tile of linear_tile.h finds rows of x and rows of W.
#pragma once
#include "kernels/cuda/matmul/linear_operands.h"
#include "kernels/cuda/matmul/linear_tile.h"
#include "kernels/cuda/matmul/norm_between.h"
#include "kernels/cuda/matmul/sum_scales.h"

namespace npusim {

constexpr int64_t kNowhere = -1;  // the end of a row that does not exist

struct Source {
  struct Row {
    const X* x;
    int64_t end;
  };
  struct Column {
    const W* w;
    int64_t end;
  };
  static constexpr int kWeightOperands = kWeights;
  void* const* operands;
  int64_t first_row, first_column, end;
  bool wide;

  Row a_row(int row) const {
    const int64_t at = first_row + row;
    const X* x = static_cast<const X*>(operands[0]);
    return at < params.m ? Row{x + at * params.ldx, end} : Row{x, kNowhere};
  }
  Column b_column(int column) const {
    const auto [output, part] = tile_column(column);
    const int64_t at = first_column + output;
    if (at >= params.n) return {static_cast<const W*>(operands[1]), kNowhere};
    return {weight_row(operands, at + part * params.n), end};
  }
  float scale(int64_t row, int64_t column, int part) const {
    if constexpr (kScalesSums) return sum_scales(operands)[column + part * params.n];
    if constexpr (!kAfterNorm) return 1.0f;
    return row_scale(row_square_sums(operands), row);
  }
#if NPUSIM_TENSOR_CORES
  template <bool kWide>
  void load_a(const Row& row, int64_t k, unsigned to) const {
    copy_chunk<kWide>(to, row.x + k, row.end - k);
  }
  template <bool kWide>
  void load_b(const Column& column, int64_t k, unsigned to) const {
    copy_chunk<kWide>(to, column.w + k, column.end - k);
  }
#else
  void a4(const Row& row, int64_t k, float (&v)[4]) const { load_four(row.x, k, row.end, wide, v); }
  void b4(const Column& column, int64_t k, float (&v)[4]) const {
    load_four(column.w, k, column.end, wide, v);
  }
  float a(const Row& row, int64_t k) const { return k < row.end ? to_float(row.x[k]) : 0.0f; }
  float b(const Column& column, int64_t k) const {
    return k < column.end ? to_float(column.w[k]) : 0.0f;
  }
#endif
};

inline Source source_of(void* const* operands) {
  return {operands, static_cast<int64_t>(blockIdx.x) * kTileRows,
          static_cast<int64_t>(blockIdx.y) * kOutputs, slice_end(),
          params.k % 8 == 0 && operands_are_chunk_aligned(operands)};
}

}  // namespace npusim
