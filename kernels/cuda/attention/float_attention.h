// Attention of float32 on the tensor cores, each number in parts (common/float_parts.h). A block
// has its queries and a tile of keys and values in shared memory, in parts; what the next product
// takes is on its way to registers meanwhile. Warps divide rows and keys as those of
// mma_attention.h do. Rows whose sums are not finite are computed again, by multiply-adds.
#pragma once
#include "kernels/cuda/attention/key_warps.h"
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/common/float_parts.h"

namespace npusim {

// Whether registers hold a tile that is on its way besides what the warps sum up.
constexpr bool kLoadsAhead = kWidest <= 128;

// Rows in shared memory: parts beside each other, rows an odd number of chunks of 16 bytes apart,
// so that the chunks of eight rows are in all banks.
template <int kCount, int kColumns>
struct RowsInParts {
  static constexpr int kChunks = (kColumns + 15) / 16 * 2,
                       kPitch = (kFloatParts * kChunks | 1) * 16;
  static constexpr int kBytes = kCount * kPitch;
  // Fours of elements, which the threads share.
  static constexpr int kFours = kChunks * 2, kAll = kCount * kFours;
  static constexpr int kLoads = (kAll + kThreads - 1) / kThreads;
  static constexpr int kHeld = kLoadsAhead ? kLoads : smaller(kLoads, 8);  // in registers at once

  static unsigned at(int row, int part, int chunk) {
    return row * kPitch + (part * kChunks + chunk) * 16;
  }
  static int row_of(int n) {
    const int thread = threadIdx.x;
    return kThreads % kFours == 0 ? thread / kFours + n * (kThreads / kFours)
                                  : (n * kThreads + thread) / kFours;
  }
  static int column_of(int n) {
    const int thread = threadIdx.x;
    return (kThreads % kFours == 0 ? thread : n * kThreads + thread) % kFours * 4;
  }
  // Fours from number `begin` on of rows on 16 bytes, `stride` apart; rows from `count` on are
  // zero.
  void load(const T* rows, int64_t stride, int count, int begin = 0) {
    const T* const first = as_base(rows + row_of(begin) * stride + column_of(begin));
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int row = row_of(begin + n), column = column_of(begin + n);
      uint4 four = {};
      if (row < count && column < kColumns) {
        constexpr bool kEven = kThreads % kFours == 0;
        four = load_kept(kEven ? first + n * (kThreads / kFours) * stride
                               : rows + row * stride + column);
      }
      unpack<T>(four, held[n]);
    }
  }
  void store(unsigned to, int begin = 0) const {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      store_four(to, row_of(begin + n), column_of(begin + n), held[n]);
    }
  }
  void copy(unsigned to, const T* rows, int64_t stride, int count) {
#pragma unroll
    for (int begin = 0; begin < kLoads; begin += kHeld) {
      load(rows, stride, count, begin);
      store(to, begin);
    }
  }
  // Any rows, a four at a time.
  template <typename RowAt>
  static void copy_any(unsigned to, int count, const RowAt& row_at) {
#pragma unroll 1
    for (int n = 0; n < kLoads; ++n) {
      float v[4];
      const int end = row_of(n) < count ? kColumns : 0;
      load_four(row_at(row_of(n)), column_of(n), end, false, v);
      store_four(to, row_of(n), column_of(n), v);
    }
  }

 private:
  float held[kHeld][4];

  static void store_four(unsigned to, int row, int column, const float (&v)[4]) {
    if (row >= kCount) return;
    unsigned low[kFloatParts], high[kFloatParts];
    split_pair(v[0], v[1], low);
    split_pair(v[2], v[3], high);
#pragma unroll
    for (int p = 0; p < kFloatParts; ++p) {
      store_shared(to + at(row, p, column / 8) + column % 8 * 2, __uint_as_float(low[p]),
                   __uint_as_float(high[p]));
    }
  }
};

using QueryRows = RowsInParts<kBlockRows, kD>;
using KeyRows = RowsInParts<kTile, kD>;
using ValueRows = RowsInParts<kTile, kV>;
constexpr int kKeysAt = QueryRows::kBytes, kValuesAt = kKeysAt + KeyRows::kBytes;
constexpr int kEights = kWarpKeys / 8;  // of keys, that a warp has

struct FloatAccumulator : OnlineSoftmax<2> {
  float sums[kVBlocks][4] = {};

  void rescale_sums(const float (&corrections)[2]) {
#pragma unroll
    for (int j = 0; j < kVBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] *= corrections[e / 2];
    }
  }
};

inline bool is_wide(const float* base, const int64_t (&strides)[3], int columns) {
  return columns % 4 == 0 && strides[0] % 4 == 0 && strides[1] % 4 == 0 && strides[2] % 4 == 0 &&
         is_aligned(base, 16);
}

// The rows of a block from `first_row` on.
struct FloatRows {
  void* const* operands;
  const Head& head;
  const Tiles& tiles;
  const RowVisibility& visibility;  // of this warp's rows
  int first_row;
  unsigned shared;
  bool wide_keys, wide_values;

  static int lane() { return threadIdx.x % 32; }
  static int warp_row() { return static_cast<int>(threadIdx.x) / 32 / kKeyWarps * 16; }
  static int warp_key() { return static_cast<int>(threadIdx.x) / 32 % kKeyWarps * kWarpKeys; }
  int64_t first_key(int tile) const { return tiles.begin + static_cast<int64_t>(tile) * kTile; }
  int count(int tile) const {
    return static_cast<int>(smaller<int64_t>(tiles.end - first_key(tile), kTile));
  }
  const T* keys(int tile) const { return head.k + first_key(tile) * params.k_strides[2]; }
  const T* values(int tile) const { return head.v + first_key(tile) * params.v_strides[2]; }
  void load_keys(int tile, KeyRows& to) const {
    if (kLoadsAhead && wide_keys) to.load(keys(tile), params.k_strides[2], count(tile));
  }
  void store_keys(int tile, KeyRows& rows) const {
    store<KeyRows>(shared + kKeysAt, wide_keys, keys(tile), params.k_strides[2], count(tile), rows);
  }
  void load_values(int tile, ValueRows& to) const {
    if (kLoadsAhead && wide_values) to.load(values(tile), params.v_strides[2], count(tile));
  }
  void store_values(int tile, ValueRows& rows) const {
    store<ValueRows>(shared + kValuesAt, wide_values, values(tile), params.v_strides[2],
                     count(tile), rows);
  }
  template <typename Rows>
  static void store(unsigned to, bool wide, const T* from, int64_t stride, int count, Rows& rows) {
    if (!wide) {
      Rows::copy_any(to, count, [&](int row) { return from + row * stride; });
    } else if (kLoadsAhead) {
      rows.store(to);
    } else {
      rows.copy(to, from, stride, count);
    }
  }

  // Dot products of this warp's queries with the first of its keys, in eights; 0 for the others.
  void dot(int eights, float (&scores)[kEights][4]) const {
    constexpr int kAtOnce = smaller(kEights, 4);
#pragma unroll
    for (int i = 0; i < kEights * 4; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int first = 0; first < kEights; first += kAtOnce) {
      if (first >= eights) break;
#pragma unroll 1
      for (int step = 0; step < kDSteps; ++step) {
        unsigned q[kFloatParts][4], k[kFloatParts][kAtOnce / 2][4];
#pragma unroll
        for (int p = 0; p < kFloatParts; ++p) {
          const int row = warp_row() + lane() % 16;
          ldmatrix(q[p], shared + QueryRows::at(row, p, step * 2 + lane() / 16));
#pragma unroll
          for (int j = 0; j < kAtOnce / 2; ++j) {
            const int key = warp_key() + first * 8 + j * 16 + lane() / 16 * 8 + lane() % 8;
            ldmatrix(k[p][j], shared + kKeysAt + KeyRows::at(key, p, step * 2 + lane() / 8 % 2));
          }
        }
        float products[kAtOnce][4];
        multiply_parts(q, k, products);
#pragma unroll
        for (int i = 0; i < kAtOnce * 4; ++i)
          scores[first + i / 4][i % 4] += products[i / 4][i % 4];
      }
    }
  }

  // Adds the values of the first of this warp's keys, in eights, times their weights.
  void accumulate(int eights, const float (&weights)[kEights][4],
                  FloatAccumulator& accumulator) const {
    constexpr int kAtOnce = kVBlocks % 4 == 0 && kV <= 64 ? 4 : 2;
#pragma unroll
    for (int i = 0; i < kEights; i += 2) {
      if (i >= eights) break;
      unsigned w[kFloatParts][4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float (&two)[4] = weights[i + e / 2];
        unsigned parts[kFloatParts];
        split_pair(two[e % 2 * 2], two[e % 2 * 2 + 1], parts);
#pragma unroll
        for (int p = 0; p < kFloatParts; ++p) w[p][e] = parts[p];
      }
#pragma unroll
      for (int first = 0; first < kVBlocks; first += kAtOnce) {
        unsigned v[kFloatParts][kAtOnce / 2][4];
#pragma unroll
        for (int p = 0; p < kFloatParts; ++p) {
#pragma unroll
          for (int j = 0; j < kAtOnce / 2; ++j) {
            const int row = warp_key() + i * 8 + lane() % 16;
            ldmatrix_transposed(
                v[p][j], shared + kValuesAt + ValueRows::at(row, p, first + j * 2 + lane() / 16));
          }
        }
        float products[kAtOnce][4];
        multiply_parts(w, v, products);
#pragma unroll
        for (int n = 0; n < kAtOnce * 4; ++n) {
          accumulator.sums[first + n / 4][n % 4] += products[n / 4][n % 4];
        }
      }
    }
  }

  // Passes over the tiles.
  void attend(FloatAccumulator& accumulator) const {
    const bool has_rows = first_row + warp_row() < kRows;
    KeyRows keys;
    ValueRows values;
    if (tiles.first < tiles.last) {
      load_keys(tiles.first, keys);
      store_keys(tiles.first, keys);
    }
#pragma unroll 1
    for (int tile = tiles.first; tile < tiles.last; ++tile) {
      const bool goes_on = tile + 1 < tiles.last;
      const int64_t key = first_key(tile) + warp_key();
      const int eights =
          has_rows ? static_cast<int>(smaller<int64_t>((tiles.end - key + 7) / 8, kEights)) : 0;
      load_values(tile, values);
      __syncthreads();  // keys are there, and the values before are used
      float scores[kEights][4];
      if (eights > 0) {
        dot(eights, scores);
        float corrections[2];
        if constexpr (RowVisibility::kPlain) {
          const int first = static_cast<int>(key);
          if (!visibility.is_product(first, kWarpKeys)) visibility.hide(scores, first);
        } else {
          visibility.apply(scores, static_cast<int>(key));
        }
        accumulator.weigh<RowVisibility::kPlain>(scores, corrections);
        accumulator.rescale_sums(corrections);
      }
      store_values(tile, values);
      if (goes_on) load_keys(tile + 1, keys);
      __syncthreads();  // values are there, and the keys are used
      if (eights > 0) accumulate(eights, scores, accumulator);
      if (goes_on) store_keys(tile + 1, keys);
    }
  }
};

// A row of the keys [begin, end) by multiply-adds: a warp has 32 keys at once, then their values.
inline void attend_again(void* const* operands, const Head& head, int row, int64_t begin,
                         int64_t end) {
  constexpr int kColumns = (kV + 31) / 32;
  const int lane = threadIdx.x % 32;
  MaskRow mask;
  if constexpr (params.has_mask != 0) mask = MaskRow(operands, head, row);
  float row_max = kMasked, row_sum = 0.0f, sums[kColumns] = {};
#pragma unroll 1
  for (int64_t first = begin; first < end; first += 32) {
    float weight = kMasked;
    if (first + lane < end) {
      const T *q = head.q_row(row), *k = head.k + (first + lane) * params.k_strides[2];
      float dot = 0.0f;
#pragma unroll 1
      for (int d = 0; d < kD; ++d) dot += q[d] * k[d];
      weight = scaled(dot);
      if constexpr (params.has_mask != 0) weight += mask.at(first + lane);
    }
    float new_max = fmaxf(row_max, weight);
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
      new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, far));
    }
    const float correction = rescale(row_max, new_max);
    weight = exp2f(weight - (new_max == kMasked ? 0.0f : new_max));
    row_max = new_max;
    row_sum = row_sum * correction + weight;  // of this lane's keys
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[c] *= correction;
#pragma unroll 1
    for (int i = 0; i < smaller<int64_t>(end - first, 32); ++i) {
      const float of_key = __shfl_sync(0xffffffffu, weight, i);
      const T* v = head.v + (first + i) * params.v_strides[2];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (c * 32 + lane < kV) sums[c] += of_key * v[c * 32 + lane];
      }
    }
  }
#pragma unroll
  for (int far = 16; far > 0; far /= 2) row_sum += __shfl_xor_sync(0xffffffffu, row_sum, far);
  const Results results(operands);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = c * 32 + lane;
    const float sum = row_sum == 0.0f ? 0.0f : sums[c];  // without keys, whatever the values are
    if (column < kV) results.store(head, row, column, sum, row_max, row_sum);
  }
}

// Whether all sums that the warps have of a row are finite.
inline bool is_row_finite(int row) {
  bool finite = true;
#pragma unroll
  for (int w = 0; w < kKeyWarps; ++w) {
    const int at = w * kBlockRows + row;
    finite &= is_finite(all_row_sums()[at]);
    for (int column = threadIdx.x % 32; column < kV; column += 32) {
      finite &= is_finite(all_sums()[at * kSumsPitch + column]);
    }
  }
  return !__any_sync(0xffffffffu, !finite);
}

// Blocks of later rows see more keys: they start first.
inline void run(void* const* operands) {
  KeysInUse keys;
  if (!keys.read(operands)) return;
  const Head head(operands);
  const int row_block = static_cast<int>(params.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const int first_row = row_block * kBlockRows;
  const Tiles tiles(keys, first_row, kBlockRows, kTile);
  if (tiles.is_empty()) return;
  const unsigned shared = shared_address(shared_memory);
  if (kGroup == 1 && is_wide(head.q, params.q_strides, kD)) {
    QueryRows().copy(shared, head.q_row(first_row), params.q_strides[2], kRows - first_row);
  } else {
    QueryRows::copy_any(shared, kRows - first_row,
                        [&](int row) { return head.q_row(first_row + row); });
  }
  const RowVisibility visibility(operands, keys, head, first_row + FloatRows::warp_row());
  const FloatRows rows{operands,
                       head,
                       tiles,
                       visibility,
                       first_row,
                       shared,
                       is_wide(head.k, params.k_strides, kD),
                       is_wide(head.v, params.v_strides, kV)};
  FloatAccumulator accumulator;
  rows.attend(accumulator);
  launch_dependents();
  __syncthreads();
  store_sums(accumulator);
  __syncthreads();
  const int64_t begin = rows.first_key(tiles.first);
  const int64_t end = smaller(rows.first_key(tiles.last), tiles.end);
  for (int own = threadIdx.x / 32; own < kBlockRows && first_row + own < kRows; own += kWarps) {
    if (is_row_finite(own)) {
      finish_row(operands, head, first_row, own);
      continue;
    }
    const int64_t query = Head::query(first_row + own);
    attend_again(operands, head, first_row + own, larger(begin, keys.visible_begin(query)),
                 smaller(end, keys.visible_end(query)));
  }
}

}  // namespace npusim
