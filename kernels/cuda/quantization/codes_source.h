// Where a tile of linear_tile.h finds rows of x, and rows of W as codes.
#pragma once
#include "kernels/cuda/matmul/linear_tile.h"
#include "kernels/cuda/quantization/quantized_operands.h"

namespace npusim {

struct Source {
  struct Row {
    const X* x;
    int64_t end;
  };
  struct Column {
    QuantizedRow w;
    bool exists;
  };
  static constexpr int kWeightOperands = params.segments;
  void* const* operands;
  int64_t first_row, first_column, end;
  bool wide;

  Row a_row(int row) const {
    const int64_t at = first_row + row;
    const X* x = static_cast<const X*>(operands[0]);
    return at < params.m ? Row{x + at * params.ldx, end} : Row{x, -1};
  }
  Column b_column(int column) const {
    const auto [output, part] = tile_column(column);
    const int64_t at = first_column + output;
    if (at >= params.n) return {};
    return {weight_row(operands, at + part * params.n), true};
  }
  // Bytes are multiplied without their scale.
  float scale(int64_t, int64_t column, int part) const {
    return kBytes ? *weight_row(operands, column + part * params.n).scale : 1.0f;
  }
#if NPUSIM_TENSOR_CORES
  template <bool kWide>
  void load_a(const Row& row, int64_t k, unsigned to) const {
    copy_chunk<kWide>(to, row.x + k, row.end - k);
  }
  // Padding of K holds zeros, which x's zeros meet.
  template <bool kWide>
  void load_b(const Column& column, int64_t k, unsigned to) const {
    if (!column.exists || k >= kPaddedK) return store_shared(to, {0, 0, 0, 0});
    store_shared(to, code_chunk<X>(column.w, k));
  }
#else
  void a4(const Row& row, int64_t k, float (&v)[4]) const { load_four(row.x, k, row.end, wide, v); }
  void b4(const Column& column, int64_t k, float (&v)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = k + e < end ? b(column, k + e) : 0.0f;
  }
  float a(const Row& row, int64_t k) const { return k < row.end ? to_float(row.x[k]) : 0.0f; }
  float b(const Column& column, int64_t k) const {
    if (!column.exists) return 0.0f;
    if constexpr (kBytes) return byte_code(column.w.codes[k], 0);
    const int64_t group = k / kGroupSize;
    const uint16_t word = reinterpret_cast<const uint16_t*>(column.w.codes)[k / 32 * 8 + k % 8];
    const float code = static_cast<float>(word >> (k % 32 / 8 * 4) & 15);
    return (code - column.w.zero(group)) * to_float(column.w.scales[group]);
  }
#endif
};

inline Source source_of(void* const* operands) {
  const bool wide = params.k % 8 == 0 && is_aligned(operands[0], 16) &&
                    (params.m == 1 || params.ldx * sizeof(X) % 16 == 0);
  return {operands, static_cast<int64_t>(blockIdx.x) * kTileRows,
          static_cast<int64_t>(blockIdx.y) * kOutputs, slice_end(), wide};
}

}  // namespace npusim
