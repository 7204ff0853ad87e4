// Rows of `attention`: which keys they see, where they and the keys lie, masks.
//
// The query heads that share a key/value head (grouped-query attention) are its rows, the heads of
// a query next to each other.
#pragma once
#include "kernels/metal/attention/scores.h"

#if NPUSIM_MASK
#define NPUSIM_MASK_OPERAND device const npusim::MaskElement *mask [[buffer(NPUSIM_MASK)]],
#define NPUSIM_MASK_POINTER mask
#else
#define NPUSIM_MASK_OPERAND
#define NPUSIM_MASK_POINTER nullptr
#endif
#if NPUSIM_POSITION
#define NPUSIM_POSITION_OPERAND device const int64_t *position [[buffer(NPUSIM_POSITION)]],
#define NPUSIM_FAILURE_OPERAND device npusim::Failure *failure [[buffer(NPUSIM_FAILURE)]],
#else
#define NPUSIM_POSITION_OPERAND
#define NPUSIM_FAILURE_OPERAND
#endif

namespace npusim {

typedef Storage<params.has_mask != 0 ? params.mask_dtype : 0> MaskElement;

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

// What few_rows.h and plain.h ask of rows and keys.
struct Rows {
  Head head;
  Keys keys;

  // The keys that a row sees.
  int64_t begin(int row) const { return keys.visible_begin(Head::query(row)); }
  int64_t end(int row) const { return keys.visible_end(Head::query(row)); }
  float of_query(int row, int d) const { return static_cast<float>(head.q_row(row)[d]); }
  float of_key(int64_t at, int d) const { return static_cast<float>(head.key(at)[d]); }
  float of_value(int64_t at, int column) const {
    return static_cast<float>(head.value(at)[column]);
  }
  float scored(float dot, int row, int64_t at) const { return head.score(dot, row, at); }
  int64_t place(int row) const { return head.y_row(row); }
};

}  // namespace npusim
