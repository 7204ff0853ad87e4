// The weights of a block of many query rows, transposed: S[key][row] = k·qᵀ. Lanes are rows, so
// softmax runs down the columns without a horizontal step, keys are read where they lie, and only
// the queries, the small operand, are transposed.
#pragma once

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/product.h"

namespace npusim::cpu::NPUSIM_ISA {

template <typename T>
class ManyRows {
 public:
  ManyRows(const AttentionRows<T>& rows, const AttentionScratch& s)
      : rows_(rows), p_(rows.p), s_(s), lanes_(round_up(rows.count, kLanes)) {
    for (int64_t row = 0; row < lanes_; row += kLanes) transpose_queries(row);
  }

  // The weights as the left operand of a product with the values.
  Product weights() const { return {.a = s_.scores, .a_row = 1, .a_k = lanes_}; }

  // Weighs keys [key, key + keys) against the rows' largest scores so far, which it updates;
  // started: some keys were before them.
  void weigh(int64_t key, int64_t keys, bool started) {
    score(key, keys);
    if (p_.softcap > 0) cap_scores(p_.softcap, keys * lanes_, s_.scores);
    if (p_.has_mask) {
      with_mask_type(p_.mask_dtype, [&](auto type) { mask<decltype(type)>(key, keys); });
    }
    if (rows_.seen(0, key, keys) < keys || rows_.passed(rows_.count - 1, key, keys) > 0) {
      hide_unseen(key, keys);
    }
    int64_t row = 0;
    for (; row + 4 * kLanes <= lanes_; row += 4 * kLanes) soften<4>(started, keys, row);
    for (; row < lanes_; row += kLanes) soften<1>(started, keys, row);
  }

 private:
  void transpose_queries(int64_t row) {
    const T* from[kLanes];
    const int64_t count = std::min<int64_t>(kLanes, rows_.count - row);
    for (int64_t i = 0; i < count; ++i) from[i] = rows_.q + rows_.offset(row + i, p_.q_strides);
    for (int64_t d = 0; d < p_.head_dim; d += kLanes) {
      Vec square[kLanes] = {};
      for (int64_t i = 0; i < count; ++i) {
        square[i] = load_lanes(from[i] + d, p_.head_dim - d) * p_.scale;
      }
      transpose(square);
      for (int64_t i = 0; i < kLanes; ++i) store(s_.q + (d + i) * lanes_ + row, square[i]);
    }
  }

  void score(int64_t key, int64_t keys) {
    const StridedBlock<T> block = rows_.keys(key, keys);
    Product product{.a = s_.k,
                    .a_row = s_.depth,
                    .a_k = 1,
                    .b = s_.q,
                    .b_k = lanes_,
                    .c = s_.scores,
                    .c_row = lanes_,
                    .k = p_.head_dim};
    if constexpr (__is_same(T, float)) {
      product.a = block.at;
      product.a_row = block.row;
    } else {
      copy_rows(block, s_.k, s_.depth);
    }
    multiply(product, keys, lanes_ / kLanes);
  }

  void add(int64_t j, int64_t row, Vec value) {
    float* at = s_.scores + j * lanes_ + row;
    store(at, load(at) + value);
  }
  template <typename M>
  void mask(int64_t key, int64_t keys) {
    const int64_t step = p_.mask_strides[3];
    const M* at = reinterpret_cast<const M*>(rows_.mask) + key * step;
    if (rows_.mask_is_shared()) {
      at += rows_.mask_offset(0);
      for (int64_t j = 0; j < keys; ++j) {
        const float value = mask_value(at[j * step]);
        for (int64_t row = 0; value != 0 && row < lanes_; row += kLanes) add(j, row, Vec{} + value);
      }
      return;
    }
    for (int64_t row = 0; row < lanes_; row += kLanes) {
      const M* from[kLanes];
      const int64_t count = std::min<int64_t>(kLanes, rows_.count - row);
      for (int64_t i = 0; i < count; ++i) from[i] = at + rows_.mask_offset(row + i);
      step == 1 ? mask_squares(from, count, keys, row) : mask_lane_by_lane(from, count, keys, row);
    }
  }
  template <typename M>
  void mask_squares(const M* const* from, int64_t count, int64_t keys, int64_t row) {
    for (int64_t j = 0; j < keys; j += kLanes) {
      Vec square[kLanes] = {};
      for (int64_t i = 0; i < count; ++i) square[i] = mask_lanes(from[i] + j, keys - j);
      transpose(square);
      for (int64_t i = 0; i < std::min<int64_t>(kLanes, keys - j); ++i) add(j + i, row, square[i]);
    }
  }
  template <typename M>
  void mask_lane_by_lane(const M* const* from, int64_t count, int64_t keys, int64_t row) {
    for (int64_t j = 0; j < keys; ++j) {
      Vec values{};
      for (int64_t i = 0; i < count; ++i) values[i] = mask_value(from[i][j * p_.mask_strides[3]]);
      add(j, row, values);
    }
  }

  void hide_unseen(int64_t key, int64_t keys) {
    for (int64_t row = 0; row < lanes_; ++row) {
      const int64_t last = std::min(row, rows_.count - 1);
      s_.passed[row] = static_cast<int32_t>(rows_.passed(last, key, keys));
      s_.seen[row] = static_cast<int32_t>(rows_.seen(last, key, keys));
    }
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t row = 0; row < lanes_; row += kLanes) {
        const IVec passed = *reinterpret_cast<const IVec*>(s_.passed + row);
        const IVec seen = *reinterpret_cast<const IVec*>(s_.seen + row);
        const auto at = static_cast<int32_t>(j);
        float* scores = s_.scores + j * lanes_ + row;
        store(scores, ((passed <= at) & (seen > at)) ? load(scores) : Vec{} - kInfinity);
      }
    }
  }

  // V vectors of rows side by side, to hide the latency of each one's chain.
  template <int V>
  void soften(bool started, int64_t keys, int64_t row) {
    Vec before[V], top[V], base[V], total[V] = {};
    for (int v = 0; v < V; ++v) {
      before[v] = started ? load(s_.top + row + v * kLanes) : Vec{} - kInfinity;
      top[v] = before[v];
    }
    for (int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < V; ++v) {
        const Vec x = load(s_.scores + j * lanes_ + row + v * kLanes);
        top[v] = x > top[v] ? x : top[v];
      }
    }
    // A row that has seen nothing yet has no top to subtract.
    for (int v = 0; v < V; ++v) base[v] = top[v] == -kInfinity ? Vec{} : top[v];
    for (int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < V; ++v) {
        float* at = s_.scores + j * lanes_ + row + v * kLanes;
        const Vec weight = exp_of_nonpositive(load(at) - base[v]);
        total[v] += weight;
        store(at, weight);
      }
    }
    for (int v = 0; v < V; ++v) {
      const int64_t at = row + v * kLanes;
      const Vec shrink = exp_of_nonpositive(before[v] - base[v]);
      const Vec kept = started ? load(s_.total + at) * shrink : Vec{};
      store(s_.shrink + at, shrink);
      store(s_.top + at, top[v]);
      store(s_.total + at, kept + total[v]);
    }
  }

  const AttentionRows<T>& rows_;
  const abi::AttentionParams& p_;
  const AttentionScratch& s_;
  const int64_t lanes_;  // rows, in whole vectors
};

}  // namespace npusim::cpu::NPUSIM_ISA
