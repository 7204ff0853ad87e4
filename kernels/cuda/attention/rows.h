// What all paths of attention have in common: which keys are visible, where rows lie, masks, and
// results of splits of the keys, which are combined afterwards.
//
// The query heads that share a key/value head (grouped-query attention) are rows of the same block,
// the heads of a query next to each other: each key and value is read once for the whole group.
#pragma once
#include "kernels/cuda/attention/scores.h"
#include "kernels/cuda/common/cluster.h"

namespace npusim {

// Splits of the keys: among the blocks of a cluster, which combine them, or among blocks that leave
// that to a second launch. On devices without clusters the first block of one takes all keys.
constexpr bool kClustered = NPUSIM_CLUSTERED && kHasClusters;
constexpr int kSplit = NPUSIM_CLUSTERED && !kHasClusters ? 1 : NPUSIM_SPLIT;

constexpr int kRows = static_cast<int>(params.q_len) * kGroup;  // of a key/value head

constexpr int kOperands = 3 + (params.has_mask ? 1 : 0) + (params.has_position ? 1 : 0) + 1;

constexpr bool kPositionUnwritten =
    params.has_position != 0 && (unwritten_operands >> (kOperands - 2) & 1) != 0;

// Keys [0, used) exist; query i is at position i + offset.
struct KeysInUse {
  int64_t used = params.kv_len, offset = params.causal_offset;

  // Waits for the launches before; reads the position earlier than that where nothing writes it.
  // Returns false, and reports it, when the position is outside the cache.
  bool read(void* const* operands) {
    if constexpr (!kPositionUnwritten) wait_on_dependencies();
    if constexpr (params.has_position != 0) {
      const int64_t position = *static_cast<const volatile int64_t*>(operands[kOperands - 2]);
      if constexpr (kPositionUnwritten) wait_on_dependencies();
      if (position < 0 || position > params.kv_len - params.q_len) {
        if (threadIdx.x == 0) {
          report(static_cast<Failure*>(operands[NPUSIM_ARGUMENTS - 1]), kOutOfRange, position,
                 params.kv_len - params.q_len);
        }
        return false;
      }
      used = position + params.q_len;
      offset = position;
    }
    return true;
  }
  // A query sees keys [visible_begin, visible_end).
  int64_t visible_end(int64_t query) const {
    if constexpr (params.causal == 0) return used;
    return larger<int64_t>(0, smaller(used, query + offset + 1));
  }
  int64_t visible_begin(int64_t query) const {
    if constexpr (params.window == 0) return 0;
    return larger<int64_t>(0, query + offset + 1 - params.window);
  }
};

// One key/value head of one batch item.
struct Head {
  int64_t batch, kv_head;
  const T *q, *k, *v;

  explicit Head(void* const* operands, unsigned index = blockIdx.y)
      : batch(index / params.kv_heads), kv_head(index % params.kv_heads) {
    q = static_cast<const T*>(operands[0]) + batch * params.q_strides[0];
    k = static_cast<const T*>(operands[1]) + batch * params.k_strides[0] +
        kv_head * params.k_strides[1];
    v = static_cast<const T*>(operands[2]) + batch * params.v_strides[0] +
        kv_head * params.v_strides[1];
  }
  static int query(int row) { return row / kGroup; }
  int64_t head(int row) const { return kv_head * kGroup + row % kGroup; }
  const T* q_row(int row) const {
    return q + head(row) * params.q_strides[1] + query(row) * params.q_strides[2];
  }
  int64_t y_row(int row) const {
    return batch * params.y_strides[0] + head(row) * params.y_strides[1] +
           query(row) * params.y_strides[2];
  }
};

inline float mask_value(boolean attend) {
  return attend.value ? 0.0f : kMasked;
}
template <typename M>
float mask_value(M added) {
  return to_float(added);
}

// What the mask adds to scores of one row, times log2(e) as they are.
struct MaskRow {
  using M = Storage<params.has_mask ? params.mask_dtype : 0>;
  const M* mask = nullptr;

  MaskRow() = default;
  MaskRow(void* const* operands, const Head& head, int row) {
    mask = static_cast<const M*>(operands[3]) + head.batch * params.mask_strides[0] +
           head.head(row) * params.mask_strides[1] + head.query(row) * params.mask_strides[2];
  }
  // A finite value stays finite: a row that is hidden by the least number of the dtype, and by no
  // infinity, is the mean of all keys' values.
  float at(int64_t key) const {
    const float added = mask_value(mask[key * params.mask_strides[3]]), times = added * kLog2E;
    return times == kMasked && added != kMasked ? kLeastFinite : times;
  }
};

// Which keys are visible to rows g and g + 8 of the 16 from first_row on, for a lane.
struct RowVisibility {
  int visible_end[2], visible_begin[2];
  int whole_begin, whole_end;  // keys that all 16 rows see
  MaskRow mask[2];

  RowVisibility(void* const* operands, const KeysInUse& keys, const Head& head, int first_row) {
    const int first = smaller(first_row, kRows - 1), last = smaller(first_row + 15, kRows - 1);
    whole_end = static_cast<int>(keys.visible_end(Head::query(first)));
    whole_begin = static_cast<int>(keys.visible_begin(Head::query(last)));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int lane = threadIdx.x % 32;
      const int row = smaller(first_row + lane / 4 + half * 8, kRows - 1);
      visible_end[half] = static_cast<int>(keys.visible_end(Head::query(row)));
      visible_begin[half] = static_cast<int>(keys.visible_begin(Head::query(row)));
      if constexpr (params.has_mask != 0) mask[half] = MaskRow(operands, head, row);
    }
  }
  // Whether scores of keys that a row sees are dot products, times kFactor.
  static constexpr bool kPlain = params.softcap == 0 && params.has_mask == 0 && kFactor > 0;
  // Whether those of `count` keys from `first` on are so for all rows.
  bool is_product(int first, int count) const {
    return kPlain && first >= whole_begin && first + count <= whole_end;
  }
  // Makes dot products with keys that a row does not see kMasked.
  template <int kEights>
  void hide(float (&scores)[kEights][4], int first) const {
    const int key = first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, i = key + j * 8 + e % 2;
        if (i >= visible_end[half] || i < visible_begin[half]) scores[j][e] = kMasked;
      }
    }
  }
  // Scales and masks dot products of queries with the keys from `first` on.
  template <int kEights>
  void apply(float (&scores)[kEights][4], int first) const {
    const int key = first + threadIdx.x % 4 * 2;
    constexpr bool kOneMask =
        params.mask_strides[2] == 0 && (kGroup == 1 || params.mask_strides[1] == 0);
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, i = key + j * 8 + e % 2;
        float score = scaled(scores[j][e]);
        const bool sees = i < visible_end[half] && i >= visible_begin[half];
        if constexpr (params.has_mask != 0) {
          if (sees) score += mask[kOneMask ? 0 : half].at(i);
        }
        scores[j][e] = sees ? score : kMasked;
      }
    }
  }
};

// The keys of a block of rows, cut into tiles, which are divided among the splits, blockIdx.z.
// Splits without tiles come last.
struct Tiles {
  int64_t begin, end;  // keys that are visible to any row
  int first, last;     // tiles of this split
  int splits;          // that have tiles

  Tiles(const KeysInUse& keys, int first_row, int rows, int tile) {
    end = keys.visible_end(Head::query(smaller(first_row + rows, kRows) - 1));
    begin = smaller(keys.visible_begin(Head::query(first_row)), end);
    const int count = static_cast<int>(ceil_div(end - begin, tile));
    const int each = (count + kSplit - 1) / kSplit;
    first = smaller<int>(blockIdx.z * each, count);
    last = smaller<int>(first + each, count);
    splits = each > 0 ? (count + each - 1) / each : 0;
  }
  bool is_empty() const { return kSplit > 1 && first == last; }
};

// Where a row's result goes: y, or with several splits scratch memory: its sums, row maximum and
// row sum.
struct Results {
  static constexpr int64_t kEach = kV + 2;
  float* partial;  // [splits][batch * kv_heads][rows][kEach]
  T* y;

  explicit Results(void* const* operands)
      : partial(static_cast<float*>(operands[kOperands])),
        y(static_cast<T*>(operands[kOperands - 1])) {}

  static int64_t place(int64_t split, int64_t head, int64_t row) {
    return ((split * params.batch * params.kv_heads + head) * kRows + row) * kEach;
  }
  void store(const Head& head, int row, int column, float sum, float row_max, float row_sum) const {
    if constexpr (kSplit == 1 || kClustered) {
      y[head.y_row(row) + column] = encode<T>(sum * inverse_sum(row_sum));
    } else {
      float* to = partial + place(blockIdx.z, blockIdx.y, row);
      to[column] = sum;
      if (column == 0) {
        to[kV] = row_max;
        to[kV + 1] = row_sum;
      }
    }
  }
};

// Combines the splits of a row of y, in their order: a block a row.
template <int kBlockRows, int kTile>
void combine(void* const* operands) {
  KeysInUse keys;
  if (!keys.read(operands)) return;
  const int row = static_cast<int>(blockIdx.x);
  const Head head(operands);
  const Results results(operands);
  const int splits = Tiles(keys, row / kBlockRows * kBlockRows, kBlockRows, kTile).splits;
  __shared__ float row_maxes[NPUSIM_SPLIT], row_sums[NPUSIM_SPLIT], scales[NPUSIM_SPLIT];
  for (int split = threadIdx.x; split < splits; split += blockDim.x) {
    const float* from = results.partial + Results::place(split, blockIdx.y, row) + kV;
    row_maxes[split] = from[0];
    row_sums[split] = from[1];
  }
  __syncthreads();
  float row_max = kMasked, row_sum = 0.0f;
  for (int split = 0; split < splits; ++split) row_max = fmaxf(row_max, row_maxes[split]);
  for (int split = threadIdx.x; split < splits; split += blockDim.x) {
    scales[split] = rescale(row_maxes[split], row_max);
  }
  __syncthreads();
  for (int split = 0; split < splits; ++split) row_sum += scales[split] * row_sums[split];
  const float inverse = inverse_sum(row_sum);
  for (int column = threadIdx.x; column < kV; column += blockDim.x) {
    const float* from = results.partial + Results::place(0, blockIdx.y, row) + column;
    float sum = 0.0f;
#pragma unroll 16
    for (int split = 0; split < splits; ++split)
      sum += scales[split] * from[Results::place(split, 0, 0)];
    results.y[head.y_row(row) + column] = encode<T>(sum * inverse);
  }
}

}  // namespace npusim
