// One new token's attention over a cache: its queries and key are rotated, key and value appended,
// and the queries attend to the rows in use. A threadgroup has up to NPUSIM_ROWS heads of a
// key/value head and one of up to NPUSIM_PARTS parts of the keys, as `attention` of few queries
// has; the one with the last part and the first heads writes the new rows, which all others with
// that part take from what they have rotated themselves.
#include "kernels/metal/attention/parts.h"
#if NPUSIM_HAS_SIMDGROUP_MATRIX
#include "kernels/metal/attention/few_rows.h"
#else
#include "kernels/metal/attention/plain.h"
#endif

namespace npusim {

typedef Storage<params.cs_dtype> Angle;

// The heads of a token that share keys (`Rows` of rows.h), whose queries lie in threadgroup memory.
struct TokenRows {
  int64_t batch, kv_head, position;
  device const T* keys;  // before the new one
  device const T* values;
  threadgroup const T* queries;  // of a threadgroup's rows
  threadgroup const T* new_key;
  threadgroup const T* new_value;

  int64_t begin(int) const {
    const int64_t first = params.window > 0 ? position + 1 - params.window : 0;
    return first < 0 ? 0 : first;
  }
  int64_t end(int) const { return position + 1; }
  float of_query(int row, int d) const { return static_cast<float>(queries[row % kEach * kD + d]); }
  float of_key(int64_t at, int d) const {
    if (at == position) return static_cast<float>(new_key[d]);
    return static_cast<float>(keys[at * params.k_cache_strides[2] + d]);
  }
  float of_value(int64_t at, int column) const {
    if (at == position) return static_cast<float>(new_value[column]);
    return static_cast<float>(values[at * params.v_cache_strides[2] + column]);
  }
  float scored(float dot, int, int64_t) const { return scaled(dot); }
  int64_t place(int row) const {
    return batch * params.y_strides[0] + (kv_head * kGroup + row) * params.y_strides[1];
  }
};

// Element `at` of a row, rotated, as `rope` computes and rounds it.
inline T rotated_element(device const T* x, device const Angle* cos, device const Angle* sin,
                         int at) {
  const int turned = static_cast<int>(params.rotary_dim), half_turned = turned / 2;
  if (at >= turned) return x[at];
  const bool first = params.interleaved != 0 ? at % 2 == 0 : at < half_turned;
  const int other = params.interleaved != 0 ? at ^ 1 : first ? at + half_turned : at - half_turned;
  const float a = static_cast<float>(x[at]) * static_cast<float>(cos[at]);
  const float b = static_cast<float>(x[other]) * static_cast<float>(sin[at]);
  return encode<T>(first ? a - b : a + b);
}

inline bool fits(int64_t position) {
  return position >= 0 && position < params.limit;
}

}  // namespace npusim

kernel void npusim_kernel(
    device const npusim::T* q [[buffer(0)]], device const npusim::T* k [[buffer(1)]],
    device const npusim::T* v [[buffer(2)]], device const npusim::Angle* cos [[buffer(3)]],
    device const npusim::Angle* sin [[buffer(4)]], device const int64_t* position [[buffer(5)]],
    device npusim::T* keys [[buffer(6)]], device npusim::T* values [[buffer(7)]],
    NPUSIM_SCRATCH_OPERAND device npusim::Failure* failure [[buffer(NPUSIM_FAILURE)]],
    device npusim::T* y [[buffer(NPUSIM_Y)]], uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  threadgroup T queries[kEach * kD];
  threadgroup T new_key[kD];
  threadgroup T new_value[kV];
#if NPUSIM_HAS_SIMDGROUP_MATRIX
  threadgroup float maxima[kSimdGroups * kEach];
  threadgroup float totals[kSimdGroups * kEach];
  threadgroup float partial[kSimdGroups * kEach * kPartial];
#else
  threadgroup float folded[NPUSIM_BLOCK];
  threadgroup float weights[NPUSIM_BLOCK];
#endif
  const int t = static_cast<int>(thread_of_group);
  const int64_t at = *position;
  if (!fits(at)) {
    if (t == 0) report(failure, kOutOfRange, at, params.limit - 1);
    return;
  }
  const int first = static_cast<int>(group % NPUSIM_ROW_TILES) * kEach;
  const int number = static_cast<int>(group / NPUSIM_ROW_TILES % kParts);
  const int64_t item = group / NPUSIM_ROW_TILES / kParts;
  const int64_t batch = item / params.kv_heads, kv_head = item % params.kv_heads;
  keys += batch * params.k_cache_strides[0] + kv_head * params.k_cache_strides[1];
  values += batch * params.v_cache_strides[0] + kv_head * params.v_cache_strides[1];
  const TokenRows rows = {batch, kv_head, at, keys, values, queries, new_key, new_value};
  const Part part = part_of_rows(rows, first, number);
  if (number >= part.parts) return;

  cos += batch * params.cs_strides[0];
  sin += batch * params.cs_strides[1];
  for (int i = t; i < kEach * kD; i += NPUSIM_BLOCK) {
    const int row = first + i / kD < kRows ? first + i / kD : kRows - 1;
    device const T* x =
        q + batch * params.q_strides[0] + (kv_head * kGroup + row) * params.q_strides[1];
    queries[i] = rotated_element(x, cos, sin, i % kD);
  }
  if (part.end == at + 1) {
    k += batch * params.k_strides[0] + kv_head * params.k_strides[1];
    v += batch * params.v_strides[0] + kv_head * params.v_strides[1];
    for (int d = t; d < kD; d += NPUSIM_BLOCK) {
      new_key[d] = rotated_element(k, cos, sin, d);
      if (first == 0) keys[at * params.k_cache_strides[2] + d] = new_key[d];
    }
    for (int column = t; column < kV; column += NPUSIM_BLOCK) {
      new_value[column] = v[column];
      if (first == 0) values[at * params.v_cache_strides[2] + column] = new_value[column];
    }
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  const RowSums sums = {y, NPUSIM_SCRATCH_POINTER, item};
#if NPUSIM_HAS_SIMDGROUP_MATRIX
  run_few(rows, part, sums, first, t, maxima, totals, partial);
#else
  for (int row = first; row < first + kEach && row < kRows; ++row) {
    run_row(rows, part, sums, row, t, folded, weights);
  }
#endif
}

#if NPUSIM_PARTS > 1
// A threadgroup a head.
kernel void npusim_combine(device const int64_t* position [[buffer(5)]],
                           NPUSIM_SCRATCH_OPERAND device npusim::T* y [[buffer(NPUSIM_Y)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  if (!fits(*position)) return;
  const int64_t item = group / kRows;
  const TokenRows rows = {item / params.kv_heads,
                          item % params.kv_heads,
                          *position,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};
  const RowSums sums = {y, scratch, item};
  sums.combine(rows, static_cast<int>(group % kRows), static_cast<int>(t), NPUSIM_COLUMNS);
}
#endif
