// What all paths of attention have in common: which keys are visible, where rows lie, masks.
//
// The query heads that share a key/value head (grouped-query attention) are its rows, the heads of
// a query next to each other.
#pragma once
#include "kernels/metal/common/scalar_ops.h"

#if NPUSIM_MASK
#define NPUSIM_MASK_OPERAND device const npusim::MaskElement *mask [[buffer(NPUSIM_MASK)]],
#define NPUSIM_MASK_POINTER mask
#else
#define NPUSIM_MASK_OPERAND
#define NPUSIM_MASK_POINTER nullptr
#endif
#if NPUSIM_POSITION
#define NPUSIM_POSITION_OPERAND                               \
  device const int64_t *position [[buffer(NPUSIM_POSITION)]], \
      device npusim::Failure *failure [[buffer(NPUSIM_FAILURE)]],
#else
#define NPUSIM_POSITION_OPERAND
#endif

namespace npusim {

typedef Storage<params.dtype> T;
typedef Storage<params.has_mask != 0 ? params.mask_dtype : 0> MaskElement;

constant constexpr int kGroup = static_cast<int>(params.heads / params.kv_heads);
constant constexpr int kD = static_cast<int>(params.head_dim);
constant constexpr int kV = static_cast<int>(params.v_dim);
constant constexpr int kRows = static_cast<int>(params.q_len) * kGroup;  // of a key/value head
constant constexpr float kLog2E = 1.44269504f;
constant constexpr float kMasked = -INFINITY;  // the score of a key that is not visible
constant constexpr float kLeastFinite = -3.402823466e+38f;

// A score times log2(e), so that weights are powers of two.
inline float scaled(float dot) {
  if (params.softcap != 0.0f) {
    const float capped = metal::precise::tanh(dot * (params.scale / params.softcap));
    return params.softcap * kLog2E * capped;
  }
  return dot * (params.scale * kLog2E);
}
// e to the power of what a score of base 2 is above a row's maximum, or above 0 where there is
// none.
inline float weight_of(float score, float row_max) {
  return metal::precise::exp2(score - (row_max == kMasked ? 0.0f : row_max));
}
// The factor of sums that are relative to the row maximum `old`, for a new one that is not smaller.
inline float rescale(float old, float row_max) {
  return old == kMasked ? 0.0f : metal::precise::exp2(old - row_max);
}
inline float larger(float a, float b) {
  return a > b ? a : b;
}

// Keys [0, used) exist; query i is at position i + offset.
struct Keys {
  int64_t used, offset;

  // A query sees keys [visible_begin, visible_end).
  int64_t visible_end(int64_t query) const {
    if (params.causal == 0) return used;
    const int64_t end = query + offset + 1;
    return end < 0 ? 0 : end < used ? end : used;
  }
  int64_t visible_begin(int64_t query) const {
    const int64_t begin = params.window == 0 ? 0 : query + offset + 1 - params.window;
    return begin < 0 ? 0 : begin;
  }
};

inline float added_by(bool attend) {
  return attend ? 0.0f : kMasked;
}
inline float added_by(float added) {
  return added;
}
inline float added_by(half added) {
  return static_cast<float>(added);
}
#if __METAL_VERSION__ >= 310
inline float added_by(bfloat added) {
  return static_cast<float>(added);
}
#endif

// One key/value head of one batch item.
struct Head {
  int64_t batch, kv_head;
  device const T* q;
  device const T* k;
  device const T* v;
  device const MaskElement* mask;

  static int query(int row) { return row / kGroup; }
  int64_t head(int row) const { return kv_head * kGroup + row % kGroup; }
  device const T* q_row(int row) const {
    return q + batch * params.q_strides[0] + head(row) * params.q_strides[1] +
           query(row) * params.q_strides[2];
  }
  device const T* key(int64_t at) const {
    return k + batch * params.k_strides[0] + kv_head * params.k_strides[1] +
           at * params.k_strides[2];
  }
  device const T* value(int64_t at) const {
    return v + batch * params.v_strides[0] + kv_head * params.v_strides[1] +
           at * params.v_strides[2];
  }
  int64_t y_row(int row) const {
    return batch * params.y_strides[0] + head(row) * params.y_strides[1] +
           query(row) * params.y_strides[2];
  }
  // A dot product of a row and a key that it sees, scaled and masked. A mask's finite value stays
  // finite: a row that is hidden by the least number of the dtype, and by no infinity, is the mean
  // of all keys' values.
  float score(float dot, int row, int64_t key) const {
    if (params.has_mask == 0) return scaled(dot);
    const float added =
        added_by(mask[batch * params.mask_strides[0] + head(row) * params.mask_strides[1] +
                      query(row) * params.mask_strides[2] + key * params.mask_strides[3]]);
    const float times = added * kLog2E;
    return scaled(dot) + (times == kMasked && added != kMasked ? kLeastFinite : times);
  }
};

// An element of y, which is 0 where a row sees nothing.
inline T result_of(float sum, float row_sum) {
  return encode<T>(row_sum != 0.0f ? sum / row_sum : 0.0f);
}

}  // namespace npusim
