// y = softmax(cap(scale * q·kᵀ) + mask, causal)·v with a running maximum and sum per row (online
// softmax: Milakov & Gimelshein, arXiv:1805.02867). NPUSIM_PATH says how: 0 plain, 1 few rows, 2
// tiles; a threadgroup has NPUSIM_ROWS rows, and of few rows one of up to NPUSIM_PARTS parts of the
// keys.
#if NPUSIM_HAS_SIMDGROUP_MATRIX
#define NPUSIM_FEW_ROWS (NPUSIM_PATH == 1)
#define NPUSIM_TILES (NPUSIM_PATH == 2)
#else
#define NPUSIM_FEW_ROWS 0
#define NPUSIM_TILES 0
#endif
#include "kernels/metal/attention/parts.h"
#include "kernels/metal/attention/rows.h"
#if NPUSIM_TILES
#include "kernels/metal/attention/tiles.h"
#elif NPUSIM_FEW_ROWS
#include "kernels/metal/attention/few_rows.h"
#else
#include "kernels/metal/attention/plain.h"
#endif
#if NPUSIM_POSITION
#define NPUSIM_POSITION_POINTER position
#else
#define NPUSIM_POSITION_POINTER nullptr
#endif

namespace npusim {

// The keys in use. Where a cache lacks the rows that a position asks for there are none.
inline Keys used_keys(device const int64_t* position) {
  if (NPUSIM_POSITION == 0) return {params.kv_len, params.causal_offset};
  if (*position < 0 || *position > params.kv_len - params.q_len) return {-1, 0};
  return {*position + params.q_len, *position};
}

}  // namespace npusim

kernel void npusim_kernel(device const npusim::T* q [[buffer(0)]],
                          device const npusim::T* k [[buffer(1)]],
                          device const npusim::T* v [[buffer(2)]],
                          NPUSIM_MASK_OPERAND NPUSIM_POSITION_OPERAND NPUSIM_SCRATCH_OPERAND
                              NPUSIM_FAILURE_OPERAND device npusim::T* y [[buffer(NPUSIM_Y)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint thread_of_group [[thread_position_in_threadgroup]]) {
  using namespace npusim;
#if NPUSIM_TILES
  threadgroup T queries[kTileRows * kQPitch];
  threadgroup T kv[kKeys * kKvPitch];
  threadgroup float scores[kTileRows * kScorePitch];
  threadgroup T weights[kTileRows * kWeightPitch];
#elif NPUSIM_FEW_ROWS
  threadgroup float maxima[kSimdGroups * kEach];
  threadgroup float totals[kSimdGroups * kEach];
  threadgroup float partial[kSimdGroups * kEach * kPartial];
#else
  threadgroup float folded[NPUSIM_BLOCK];
  threadgroup float weights[NPUSIM_BLOCK];
#endif
  const int t = static_cast<int>(thread_of_group);
  const Keys keys = used_keys(NPUSIM_POSITION_POINTER);
#if NPUSIM_POSITION
  if (keys.used < 0) {
    if (t == 0) report(failure, kOutOfRange, *position, params.kv_len - params.q_len);
    return;
  }
#endif
  const int first = static_cast<int>(group % NPUSIM_ROW_TILES) * NPUSIM_ROWS;
  const int64_t item = group / NPUSIM_ROW_TILES / NPUSIM_PARTS;
  const Head head = {item / params.kv_heads, item % params.kv_heads, q, k, v, NPUSIM_MASK_POINTER};
#if NPUSIM_TILES
  run_tiles(head, keys, y, first, t, queries, kv, scores, weights);
#else
  const Rows rows = {head, keys};
  const int number = static_cast<int>(group / NPUSIM_ROW_TILES % NPUSIM_PARTS);
  const Part part = part_of_rows(rows, first, number);
  if (number >= part.parts) return;
  const RowSums sums = {y, NPUSIM_SCRATCH_POINTER, item};
#if NPUSIM_FEW_ROWS
  run_few(rows, part, sums, first, t, maxima, totals, partial);
#else
  for (int row = first; row < first + NPUSIM_ROWS && row < kRows; ++row) {
    run_row(rows, part, sums, row, t, folded, weights);
  }
#endif
#endif
}

#if NPUSIM_PARTS > 1
// A threadgroup a row.
kernel void npusim_combine(NPUSIM_POSITION_OPERAND NPUSIM_SCRATCH_OPERAND device npusim::T* y
                           [[buffer(NPUSIM_Y)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  const Keys keys = used_keys(NPUSIM_POSITION_POINTER);
  if (keys.used < 0) return;
  const int64_t item = group / kRows;
  const Head head = {
      item / params.kv_heads, item % params.kv_heads, nullptr, nullptr, nullptr, nullptr};
  const RowSums sums = {y, scratch, item};
  const Rows rows = {head, keys};
  sums.combine(rows, static_cast<int>(group % kRows), static_cast<int>(t), NPUSIM_COLUMNS);
}
#endif
