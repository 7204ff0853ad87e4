// What a block of query rows sums of values, weighted: shrunk where a later block of keys has a
// larger score, and divided by the total at the end.
#pragma once

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/gemm_tile_bf16.h"

namespace npusim::cpu::NPUSIM_ISA {

template <typename T>
void shrink_sums(const AttentionRows<T>& rows, const AttentionScratch& s) {
  for (int64_t row = 0; row < rows.count; ++row) {
    float* sums = s.sums + row * s.v_columns;
    for (int64_t d = 0; d < s.v_columns; d += kLanes) {
      store(sums + d, load(sums + d) * s.shrink[row]);
    }
  }
}

// sums (+)= weights · values of keys [key, key + keys). Values in whole vectors are read where they
// lie, 16-bit ones only by few rows: for many they are widened once.
template <typename T>
void multiply_values(const AttentionRows<T>& rows, const AttentionScratch& s,
                     const FloatGemm& weights, int64_t key, int64_t keys, bool started) {
  const StridedBlock<T> values = rows.values(key, keys);
  const auto add = [&](const auto* b, int64_t b_k) {
    Gemm<std::remove_cvref_t<decltype(*b)>> product{.a = weights.a,
                                                    .a_row = weights.a_row,
                                                    .a_k = weights.a_k,
                                                    .b = b,
                                                    .b_k = b_k,
                                                    .c = s.sums,
                                                    .c_row = s.v_columns,
                                                    .k = keys,
                                                    .add = started};
    multiply(product, rows.count, s.v_columns / kLanes);
  };
  const bool in_place = __is_same(T, float) || rows.count <= kFewRows;
  if (in_place && values.columns == s.v_columns) return add(values.at, values.row);
  copy_rows(values, s.v, s.v_columns);
  add(s.v, s.v_columns);
}
template <typename T>
void multiply_values(const AttentionRows<T>& rows, const AttentionScratch& s, Bf16Gemm product,
                     int64_t key, int64_t keys, bool started) {
  const StridedBlock<T> values = rows.values(key, keys);
  product.c = s.sums;
  product.c_row = s.v_columns;
  product.add = started;
  if (rows.count <= kFewRows && values.columns == s.v_columns) {
    return multiply_stored(product, rows.count, values, rows.in_use.used - key);
  }
  interleave_rows(values, s.v_pairs, s.v_columns);
  product.b = s.v_pairs;
  product.b_k = 2 * s.v_columns;
  product.pairs = (keys + 1) / 2;
  multiply(product, rows.count, s.v_columns / kLanes);
}

// A row that sees nothing is 0: none of its block does, or its total is 0.
template <typename T>
void store_output(const AttentionRows<T>& rows, const AttentionScratch& s, bool any_seen) {
  for (int64_t row = 0; row < rows.count; ++row) {
    T* y = rows.y + rows.offset(row, rows.p.y_strides);
    const float total = any_seen ? s.total[row] : 0.0f;
    const float* sums = s.sums + row * s.v_columns;
    for (int64_t d = 0; d < rows.p.v_dim; d += kLanes) {
      store_lanes(y + d, total == 0 ? Vec{} : load(sums + d) * (1.0f / total), rows.p.v_dim - d);
    }
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
