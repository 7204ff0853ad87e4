// Attention of many queries (tiles: Dao et al., arXiv:2205.14135): a threadgroup has 32 rows, each
// of its four SIMD groups eight, and passes over NPUSIM_KEYS keys at a time. Scores, and sums that
// a new row maximum scales, go through threadgroup memory, as which lane holds an element of a
// matrix is not said: four lanes share a row there.
#pragma once
#include "kernels/metal/attention/rows.h"

namespace npusim {

enum : int {
  kThreads = 128,
  kTileRows = 32,
  kKeys = NPUSIM_KEYS,
  kDEights = (kD + 7) / 8,
  kVEights = (kV + 7) / 8,
  kPad = sizeof(T) == 2 ? 8 : 4,
  kQPitch = kDEights * 8 + kPad,
  kKvPitch = (kDEights > kVEights ? kDEights : kVEights) * 8 + kPad,
  kScorePitch = kKeys + 4,
  kWeightPitch = kKeys + kPad
};

// A row's running maximum and sum, and its factor for the sums before this tile: of each lane the
// row that it shares.
struct Softmax {
  float row_max, row_sum, factor;
};

// Copies rows of `columns` elements to threadgroup memory, zeros after them and from `end` on.
inline void copy_tile(Head head, bool values, int64_t first, int64_t end, int t,
                      threadgroup T* to) {
  const int columns = values ? kV : kD, wide = values ? kVEights * 8 : kDEights * 8;
  for (int at = t; at < kKeys * wide; at += kThreads) {
    const int row = at / wide, column = at % wide;
    T element = static_cast<T>(0.0f);
    if (first + row < end && column < columns) {
      element = values ? head.value(first + row)[column] : head.key(first + row)[column];
    }
    to[row * kKvPitch + column] = element;
  }
}

inline void multiply_scores(threadgroup const T* q, threadgroup const T* k,
                            threadgroup float* scores) {
  using namespace metal;
  simdgroup_matrix<T, 8, 8> left, right;
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j) {
    simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int d = 0; d < kDEights; ++d) {
      simdgroup_load(left, q + d * 8, kQPitch);
      simdgroup_load(right, k + j * 8 * kKvPitch + d * 8, kKvPitch, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(sum, left, right, sum);
    }
    simdgroup_store(sum, scores + j * 8, kScorePitch);
  }
}

// Turns the scores of a SIMD group's rows, the first of which is `row`, into weights.
inline void weigh(Head head, Keys keys, int row, int64_t first_key, int lane,
                  threadgroup const float* scores, threadgroup T* weights,
                  thread Softmax& softmax) {
  const int at = lane / 4, own = row + at < kRows ? row + at : kRows - 1;
  const int64_t end = keys.visible_end(Head::query(own));
  const int64_t begin = keys.visible_begin(Head::query(own));
  float score[kKeys / 4], new_max = softmax.row_max;
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) {
    const int64_t key = first_key + i * 4 + lane % 4;
    score[i] = kMasked;
    if (key >= begin && key < end) {
      score[i] = head.score(scores[at * kScorePitch + i * 4 + lane % 4], own, key);
    }
    new_max = larger(new_max, score[i]);
  }
  new_max = larger(new_max, metal::simd_shuffle_xor(new_max, 1));
  new_max = larger(new_max, metal::simd_shuffle_xor(new_max, 2));
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) {
    const float weight = weight_of(score[i], new_max);
    weights[at * kWeightPitch + i * 4 + lane % 4] = static_cast<T>(weight);
    sum += weight;
  }
  sum += metal::simd_shuffle_xor(sum, 1);
  sum += metal::simd_shuffle_xor(sum, 2);
  softmax.factor = rescale(softmax.row_max, new_max);
  softmax.row_max = new_max;
  softmax.row_sum = softmax.row_sum * softmax.factor + sum;
}

struct Sums {
  metal::simdgroup_matrix<float, 8, 8> at[kVEights];

  // Multiplies rows by their factors, by way of `room` for 8 by 8 numbers.
  void scale(float factor, int lane, threadgroup float* room) {
    threadgroup float* own = room + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kVEights; ++j) {
      metal::simdgroup_store(at[j], room, 8);
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
      own[0] *= factor;
      own[1] *= factor;
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
      metal::simdgroup_load(at[j], room, 8);
      metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
  }
  void add(threadgroup const T* weights, threadgroup const T* v) {
    metal::simdgroup_matrix<T, 8, 8> left, right;
    for (int key = 0; key < kKeys; key += 8) {
      metal::simdgroup_load(left, weights + key, kWeightPitch);
#pragma unroll
      for (int j = 0; j < kVEights; ++j) {
        metal::simdgroup_load(right, v + key * kKvPitch + j * 8, kKvPitch);
        metal::simdgroup_multiply_accumulate(at[j], left, right, at[j]);
      }
    }
  }
};

inline void run_tiles(Head head, Keys keys, device T* y, int first_row, int t, threadgroup T* q,
                      threadgroup T* kv, threadgroup float* all_scores,
                      threadgroup T* all_weights) {
  const int lane = t % 32, row = first_row + t / 32 * 8;
  const int last_row = (first_row + kTileRows < kRows ? first_row + kTileRows : kRows) - 1;
  threadgroup float* scores = all_scores + t / 32 * 8 * kScorePitch;
  threadgroup T* weights = all_weights + t / 32 * 8 * kWeightPitch;
  for (int at = t; at < kTileRows * kDEights * 8; at += kThreads) {
    const int of = at / (kDEights * 8), d = at % (kDEights * 8);
    const bool exists = first_row + of < kRows && d < kD;
    q[of * kQPitch + d] = exists ? head.q_row(first_row + of)[d] : static_cast<T>(0.0f);
  }
  Softmax softmax = {kMasked, 0.0f, 1.0f};
  Sums sums;
#pragma unroll
  for (int j = 0; j < kVEights; ++j) {
    sums.at[j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  const int64_t end = keys.visible_end(Head::query(last_row));
  for (int64_t key = keys.visible_begin(Head::query(first_row)); key < end; key += kKeys) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    copy_tile(head, false, key, end, t, kv);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    multiply_scores(q + t / 32 * 8 * kQPitch, kv, scores);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    copy_tile(head, true, key, end, t, kv);
    weigh(head, keys, row, key, lane, scores, weights, softmax);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (metal::simd_any(softmax.factor != 1.0f)) sums.scale(softmax.factor, lane, scores);
    sums.add(weights, kv);
  }
#pragma unroll
  for (int j = 0; j < kVEights; ++j) {
    metal::simdgroup_store(sums.at[j], scores, 8);
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (int e = 0; e < 2; ++e) {
      const int column = j * 8 + lane % 4 * 2 + e;
      if (row + lane / 4 < kRows && column < kV) {
        y[head.y_row(row + lane / 4) + column] =
            result_of(scores[lane / 4 * 8 + lane % 4 * 2 + e], softmax.row_sum);
      }
    }
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
}

}  // namespace npusim
