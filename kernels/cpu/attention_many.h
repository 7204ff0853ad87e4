// The weights of a block of many query rows, transposed: S[key][row] = k·qᵀ. Lanes are rows, so
// softmax runs down the columns without a horizontal step, keys are read where they lie, and only
// the queries, the small operand, are transposed.
#pragma once

#include "kernels/cpu/attention_mask.h"
#include "kernels/cpu/gemm_tile_bf16.h"

namespace npusim::cpu::NPUSIM_ISA {

template <typename T>
class ManyRows {
 public:
  ManyRows(const AttentionRows<T>& rows, const AttentionScratch& s)
      : rows_(rows), p_(rows.p), s_(s), lanes_(round_up(rows.count, kLanes)) {
    for (int64_t row = 0; row < lanes_; row += kLanes) transpose_queries(row);
  }

  // The weights as the left operand of a GEMM with the values.
  auto weights() const {
    if constexpr (kInPairs<T>) {
      return Bf16Gemm{.a = s_.weights, .a_row = 2, .a_k = 2 * lanes_};
    } else {
      return FloatGemm{.a = s_.scores, .a_row = 1, .a_k = lanes_};
    }
  }

  // Weighs keys [key, key + keys) against the rows' largest scores so far, which it updates;
  // started: some keys were before them.
  void weigh(int64_t key, int64_t keys, bool started) {
    score(key, keys);
    if (!scales_late()) finish_scores<T>(p_, keys * lanes_, s_.scores);
    if (p_.has_mask) mask(key, keys);
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
    // A pair of 16-bit elements moves as one lane.
    constexpr int64_t kStep = kInPairs<T> ? kPairLanes : kLanes;
    for (int64_t d = 0; d < p_.head_dim; d += kStep) {
      Vec square[kLanes] = {};
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (kInPairs<T>) {
          square[i] = reinterpret_cast<Vec>(load_pair_lanes(from[i] + d, p_.head_dim - d));
        } else {
          square[i] = load_lanes(from[i] + d, p_.head_dim - d) * p_.scale;
        }
      }
      transpose(square);
      for (int64_t i = 0; i < kLanes; ++i) {
        if constexpr (kInPairs<T>) {
          bfloat16* to = s_.q_pairs + 2 * ((d / 2 + i) * lanes_ + row);
          store_pairs(to, reinterpret_cast<BVec>(square[i]));
        } else {
          store(s_.q + (d + i) * lanes_ + row, square[i]);
        }
      }
    }
  }

  void score(int64_t key, int64_t keys) {
    const StridedBlock<T> block = rows_.keys(key, keys);
    if constexpr (kInPairs<T>) {
      score_pairs(block);
    } else {
      score_floats(block);
    }
  }
  void score_pairs(const StridedBlock<T>& block) {
    Bf16Gemm product{.a = block.at,
                     .a_row = block.row,
                     .a_k = 2,
                     .b = s_.q_pairs,
                     .b_k = 2 * lanes_,
                     .c = s_.scores,
                     .c_row = lanes_,
                     .pairs = (p_.head_dim + 1) / 2};
    if (p_.head_dim % 2 != 0) {  // the last pair must not reach into the next row
      for (int64_t j = 0; j < block.rows; ++j) {
        for (int64_t d = 0; d < s_.depth; d += kPairLanes) {
          const BVec keys = load_pair_lanes(block.at + j * block.row + d, p_.head_dim - d);
          store_pairs(s_.k_pairs + j * s_.depth + d, keys);
        }
      }
      product.a = s_.k_pairs;
      product.a_row = s_.depth;
    }
    multiply(product, block.rows, lanes_ / kLanes);
  }
  void score_floats(const StridedBlock<T>& block) {
    FloatGemm product{.a = s_.k,
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
    multiply(product, block.rows, lanes_ / kLanes);
  }

  void mask(int64_t key, int64_t keys) {
    MaskedScores s{.mask = rows_.mask,
                   .dtype = p_.mask_dtype,
                   .step = p_.mask_strides[3],
                   .at = {},
                   .count = 0,
                   .keys = keys,
                   .scores = s_.scores,
                   .lanes = lanes_};
    if (rows_.mask_is_shared()) return add_shared_mask(s, rows_.mask_offset(0) + key * s.step);
    for (int64_t row = 0; row < lanes_; row += kLanes, s.scores += kLanes) {
      s.count = std::min<int64_t>(kLanes, rows_.count - row);
      for (int64_t i = 0; i < s.count; ++i) s.at[i] = rows_.mask_offset(row + i) + key * s.step;
      add_mask(s);
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

  // Whether scores stay unscaled until they are powers of two: where no number is added to them,
  // and what scales them makes none of them infinite.
  bool scales_late() const {
    const bool hides = p_.mask_dtype == static_cast<int32_t>(abi::DType::kBool);
    const bool bare = p_.softcap == 0 && (!p_.has_mask || hides);
    return kInPairs<T> && bare && p_.scale > 0 && p_.scale * kLog2E <= 1;
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
        top[v] = greater(x, top[v]);
      }
    }
    // A row that has seen nothing yet has no top to subtract.
    for (int v = 0; v < V; ++v) base[v] = top[v] == -kInfinity ? Vec{} : top[v];
    Vec shrink[V];
    if constexpr (kInPairs<T>) {
      const Vec scale = broadcast(kLog2E * (scales_late() ? p_.scale : 1.0f));
      for (int v = 0; v < V; ++v) base[v] *= scale;
      weigh_pairs<V>(keys, row, scale, base, total);
      for (int v = 0; v < V; ++v) shrink[v] = short_exp2(before[v] * scale - base[v]);
    } else {
      weigh_floats<V>(keys, row, base, total);
      for (int v = 0; v < V; ++v) shrink[v] = exp_of_nonpositive(before[v] - base[v]);
    }
    for (int v = 0; v < V; ++v) {
      const int64_t at = row + v * kLanes;
      const Vec kept = started ? load(s_.total + at) * shrink[v] : Vec{};
      store(s_.shrink + at, shrink[v]);
      store(s_.top + at, top[v]);
      store(s_.total + at, kept + total[v]);
    }
  }
  template <int V>
  void weigh_floats(int64_t keys, int64_t row, const Vec (&base)[V], Vec (&total)[V]) {
    for (int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < V; ++v) {
        float* at = s_.scores + j * lanes_ + row + v * kLanes;
        const Vec value = exp_of_nonpositive(load(at) - base[v]);
        total[v] += value;
        store(at, value);
      }
    }
  }
  // The totals are of the weights as they are rounded, which is what values are multiplied by.
  template <int V>
  void weigh_pairs(int64_t keys, int64_t row, Vec scale, const Vec (&base)[V], Vec (&total)[V]) {
    constexpr uint16_t kOne = 0x3F80;
    const BVec ones = BVec{} + kOne;
    for (int64_t j = 0; j < keys; j += 2) {
      for (int v = 0; v < V; ++v) {
        const float* at = s_.scores + j * lanes_ + row + v * kLanes;
        const Vec even = short_exp2(load(at) * scale - base[v]);
        const Vec odd = j + 1 < keys ? short_exp2(load(at + lanes_) * scale - base[v]) : Vec{};
        const BVec pairs = rounded_pairs(even, odd);
        total[v] = dot_pairs(total[v], pairs, ones);
        store_pairs(s_.weights + j * lanes_ + 2 * (row + v * kLanes), pairs);
      }
    }
  }

  const AttentionRows<T>& rows_;
  const abi::AttentionParams& p_;
  const AttentionScratch& s_;
  const int64_t lanes_;  // rows, in whole vectors
};

}  // namespace npusim::cpu::NPUSIM_ISA
