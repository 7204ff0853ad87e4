// The weights of a block of few query rows (decoding a token): S[row][key], lanes are keys. Bound
// by reading keys and values, each read once, where it lies, in its storage dtype.
#pragma once

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/dot_rows.h"
#include "kernels/cpu/gemm_tile_bf16.h"

namespace npusim::cpu::NPUSIM_ISA {

static_assert(kFewRows <= kDotRows && kFewRows <= kStoredRows);

template <typename T>
class FewRows {
 public:
  FewRows(const AttentionRows<T>& rows, const AttentionScratch& s)
      : rows_(rows), p_(rows.p), s_(s) {
    for (int64_t row = 0; row < rows.count; ++row) {
      const T* from = rows.q + rows.offset(row, p_.q_strides);
      if constexpr (kInPairs<T>) {
        for (int64_t d = 0; d < p_.head_dim; d += kPairLanes) {
          store_pairs(s.q_pairs + row * s.depth + d, load_pair_lanes(from + d, p_.head_dim - d));
        }
      } else {
        for (int64_t d = 0; d < p_.head_dim; d += kLanes) {
          store(s.q + row * s.depth + d, load_lanes(from + d, p_.head_dim - d) * p_.scale);
        }
      }
    }
  }

  // The weights as the left operand of a GEMM with the values.
  auto weights() const {
    if constexpr (kInPairs<T>) {
      return Bf16Gemm{.a = s_.weights, .a_row = kBlockKeys, .a_k = 2};
    } else {
      return FloatGemm{.a = s_.scores, .a_row = kBlockKeys, .a_k = 1};
    }
  }

  // Weighs keys [key, key + keys); started: some were before them.
  void weigh(int64_t key, int64_t keys, bool started) {
    if constexpr (kInPairs<T>) {
      score(s_.q_pairs, key, keys);
    } else {
      score(s_.q, key, keys);
    }
    const int64_t end = round_up(keys, kLanes);
    for (int64_t row = 0; row < rows_.count; ++row) {
      float* scores = s_.scores + row * kBlockKeys;
      finish_scores<T>(p_, end, scores);
      if (p_.has_mask) {
        with_mask_type(p_.mask_dtype,
                       [&](auto type) { mask<decltype(type)>(row, key, keys, scores); });
      }
      const int64_t passed = rows_.passed(row, key, keys), seen = rows_.seen(row, key, keys);
      for (int64_t j = 0; j < passed; ++j) scores[j] = -kInfinity;
      for (int64_t j = seen; j < end; ++j) scores[j] = -kInfinity;
      soften(row, started, end, scores);
    }
  }

 private:
  template <typename A>
  void score(const A* q, int64_t key, int64_t keys) {
    const StridedBlock<T> block = rows_.keys(key, keys);
    const DotRowsOf<A> dots{.a = q,
                            .a_row = s_.depth,
                            .b_row = block.row,
                            .k = p_.head_dim,
                            .y = s_.scores,
                            .y_row = kBlockKeys,
                            .add = false,
                            .b_rows = rows_.in_use.used - key};
    dot_rows(dots, rows_.count, block.at, keys);
  }

  template <typename M>
  void mask(int64_t row, int64_t key, int64_t keys, float* scores) {
    const int64_t step = p_.mask_strides[3];
    const M* from = reinterpret_cast<const M*>(rows_.mask) + rows_.mask_offset(row) + key * step;
    if (step != 1) {
      for (int64_t j = 0; j < keys; ++j) scores[j] += mask_value(from[j * step]);
      return;
    }
    for (int64_t j = 0; j < keys; j += kLanes) {
      store(scores + j, load(scores + j) + mask_lanes(from + j, keys - j));
    }
  }

  void soften(int64_t row, bool started, int64_t keys, float* scores) {
    const float before = started ? s_.top[row] : -kInfinity;
    Vec tops = Vec{} + before, totals{};
    for (int64_t j = 0; j < keys; j += kLanes) {
      const Vec x = load(scores + j);
      tops = greater(x, tops);
    }
    const float top = maximum(tops);
    const Vec base = Vec{} + (top == -kInfinity ? 0.0f : top);
    for (int64_t j = 0; j < keys; j += kLanes) {
      Vec weight = exp_of_nonpositive(load(scores + j) - base);
      if constexpr (kInPairs<T>) {
        bfloat16* rounded = s_.weights + row * kBlockKeys + j;
        store(rounded, weight);
        weight = load(rounded);  // what the values are multiplied by sums up to the total
      } else {
        store(scores + j, weight);
      }
      totals += weight;
    }
    const float shrink = exp_of_nonpositive(before - base)[0];
    s_.shrink[row] = shrink;
    s_.top[row] = top;
    s_.total[row] = (started ? s_.total[row] * shrink : 0.0f) + sum(totals);
  }

  const AttentionRows<T>& rows_;
  const abi::AttentionParams& p_;
  const AttentionScratch& s_;
};

}  // namespace npusim::cpu::NPUSIM_ISA
