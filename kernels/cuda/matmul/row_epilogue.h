// The epilogue of eight columns of a row of y, and what an RMS norm after y has of it: products
// whose sums are in registers or shared memory, as tiles of many rows or few.
#pragma once
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/norm_between.h"
#include "kernels/cuda/matmul/sum_scales.h"

namespace npusim {

// Whether eight columns of y, and of the residual, begin on 16 bytes in every row.
constexpr bool kWideRows = params.ldy % 8 == 0 && (!params.residual || params.ldr % 8 == 0);

struct RowEpilogue {
  VectorEpilogue epilogue;
  NormOutputs norm_outputs;
  const float* squares;  // of x
  const float* scales;   // of sums

  explicit RowEpilogue(void* const* operands)
      : epilogue(Epilogue(operands, kWeights)),
        norm_outputs(operands),
        squares(row_square_sums(operands)),
        scales(sum_scales(operands)) {
    epilogue.wide = epilogue.wide && kWideRows;
    if constexpr (kBeforeNorm) epilogue.wide = epilogue.wide && is_aligned(norm_outputs.scaled, 16);
  }
  static int count(int row, int column) {
    return row < params.m ? static_cast<int>(smaller<int64_t>(params.n - column, 8)) : 0;
  }
  uint4 residual(int row, int column) const {
    return epilogue.residual(static_cast<int64_t>(row) * params.ldr + column, count(row, column));
  }
  // Of the first part of W, or of the second of gated products.
  void bias(int column, float (&b)[8]) const {
    epilogue.bias(column, static_cast<int>(smaller<int64_t>(params.n - column, 8)), b);
  }
  void second_bias(int column, float (&b)[8]) const {
    const int exist = static_cast<int>(smaller<int64_t>(params.n - column, 8));
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      b[e] = params.has_bias && e < exist ? epilogue.epilogue.bias[params.n + column + e] : 0;
    }
  }
  // The weight of the norm after y.
  uint4 norm(int column) const {
    const int exist = static_cast<int>(smaller<int64_t>(params.n - column, 8));
    if (!kBeforeNorm || exist <= 0) return {0, 0, 0, 0};
    if (exist >= 8) return *reinterpret_cast<const uint4*>(norm_outputs.norm + column);
    return gather_chunk(norm_outputs.norm + column, exist);
  }
  // Eight sums times the factors of rows of W from `first` on, of which `exist` exist.
  void scale(int64_t first, int exist, const float (&sums)[8], float (&v)[8]) const {
    float factors[8];
    if (kScalesSums && exist >= 8 && params.n % 4 == 0) load_floats<8>(scales + first, factors);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (kScalesSums && (exist < 8 || params.n % 4 != 0))
        factors[e] = e < exist ? scales[first + e] : 0.0f;
      v[e] = kScalesSums ? sums[e] * factors[e] : sums[e];
    }
  }
  // Eight columns of 16 bits that nothing is added to but a bias.
  uint4 rounded(const float (&bias)[8], const float (&sums)[8]) const {
    float v[8];
    epilogue.results(0, 8, {0, 0, 0, 0}, bias, sums, v);
    return pack_eight<Epilogue::Y>(v);
  }
  // Stores eight columns; returns the sum of their squares, for a norm after y.
  float store(int row, int column, const uint4& residual, const float (&bias)[8], const uint4& norm,
              const float (&sums)[8]) const {
    const int exist = count(row, column);
    if (exist <= 0) return 0.0f;
    float v[8], scaled[8];
    scale(column, exist, sums, scaled);
    epilogue.results(static_cast<int64_t>(row) * params.ldr + column, exist, residual, bias, scaled,
                     v);
    epilogue.store(static_cast<int64_t>(row) * params.ldy + column, exist, v);
    if constexpr (!kBeforeNorm) return 0.0f;
    unpack<Epilogue::Y>(pack_eight<Epilogue::Y>(v), v);
    return norm_outputs.store(row, column, exist, epilogue.wide, v, norm);
  }
  // The same of gated products, which have no residual.
  void store_gated(int row, int column, const float (&first)[8], const float (&second)[8],
                   const float (&bias)[8], const float (&second_bias)[8]) const {
    const int exist = count(row, column);
    if (exist <= 0) return;
    float v[8], one[8], other[8];
    scale(column, exist, first, one);
    scale(params.n + column, exist, second, other);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      v[e] = Epilogue::finished_gated(one[e], other[e], bias[e], second_bias[e]);
    }
    epilogue.store(static_cast<int64_t>(row) * params.ldy + column, exist, v);
  }
};

}  // namespace npusim
