// y = softmax(cap(scale * q·kᵀ) + mask, causal)·v with a running maximum and sum per row (online
// softmax: Milakov & Gimelshein, arXiv:1805.02867). NPUSIM_PATH says how: 0 plain, 1 few rows, 2
// tiles; a threadgroup has NPUSIM_ROWS rows.
#if NPUSIM_HAS_SIMDGROUP_MATRIX
#define NPUSIM_FEW_ROWS (NPUSIM_PATH == 1)
#define NPUSIM_TILES (NPUSIM_PATH == 2)
#else
#define NPUSIM_FEW_ROWS 0
#define NPUSIM_TILES 0
#endif
#include "kernels/metal/attention/rows.h"
#if NPUSIM_TILES
#include "kernels/metal/attention/tiles.h"
#elif NPUSIM_FEW_ROWS
#include "kernels/metal/attention/few_rows.h"
#else
#include "kernels/metal/attention/plain.h"
#endif

kernel void npusim_kernel(device const npusim::T* q [[buffer(0)]],
                          device const npusim::T* k [[buffer(1)]],
                          device const npusim::T* v [[buffer(2)]],
                          NPUSIM_MASK_OPERAND NPUSIM_POSITION_OPERAND device npusim::T* y
                          [[buffer(NPUSIM_Y)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint thread_of_group [[thread_position_in_threadgroup]]) {
  using namespace npusim;
#if NPUSIM_TILES
  threadgroup T queries[kTileRows * kQPitch];
  threadgroup T kv[kKeys * kKvPitch];
  threadgroup float scores[kTileRows * kScorePitch];
  threadgroup T weights[kTileRows * kWeightPitch];
#elif NPUSIM_FEW_ROWS
  threadgroup float maxima[kSimdGroups];
  threadgroup float totals[kSimdGroups];
  threadgroup float partial[kSimdGroups * kVEach * 32];
#else
  threadgroup float folded[NPUSIM_BLOCK];
  threadgroup float weights[NPUSIM_BLOCK];
#endif
  const int t = static_cast<int>(thread_of_group);
  Keys keys = {params.kv_len, params.causal_offset};
#if NPUSIM_POSITION
  if (*position < 0 || *position > params.kv_len - params.q_len) {
    if (t == 0) report(failure, kOutOfRange, *position, params.kv_len - params.q_len);
    return;
  }
  keys.used = *position + params.q_len;
  keys.offset = *position;
#endif
  const int64_t item = group / NPUSIM_ROW_TILES;
  const int first = static_cast<int>(group % NPUSIM_ROW_TILES) * NPUSIM_ROWS;
  const Head head = {item / params.kv_heads, item % params.kv_heads, q, k, v, NPUSIM_MASK_POINTER};
#if NPUSIM_TILES
  run_tiles(head, keys, y, first, t, queries, kv, scores, weights);
#elif NPUSIM_FEW_ROWS
  run_few(head, keys, y, first, t, maxima, totals, partial);
#else
  for (int row = first; row < first + NPUSIM_ROWS && row < kRows; ++row) {
    run_row(head, keys, y, row, t, folded, weights);
  }
#endif
}
