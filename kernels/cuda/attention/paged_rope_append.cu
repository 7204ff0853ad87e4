// Rotary position embedding of the queries and keys of rows of many requests, and the append of
// keys and values to the pages that their tables name. A block has a row (paged_rope.h).
#include "kernels/cuda/attention/paged_rope.h"

namespace npusim {

using paged_rope::C, paged_rope::T;
enum Operands { kQ, kK, kValue, kCos, kSin, kTables, kY = 8, kKeys, kValues, kFailure };

struct Heads {
  static constexpr int kHeads = static_cast<int>(params.heads);
  static constexpr int kKeyHeads = static_cast<int>(params.kv_heads);
  static constexpr int kD = static_cast<int>(params.head_dim);
  static constexpr int kV = static_cast<int>(params.v_dim);
  static constexpr int kTurned = static_cast<int>(params.rotary_dim);
  static constexpr bool kInterleaved = params.interleaved != 0;
  static constexpr int64_t kQStride = params.q_strides[0], kKStride = params.k_strides[0];
  static constexpr int64_t kVStride = params.v_strides[0], kYStride = params.y_strides[0];
  static constexpr int64_t kKeysStride = params.k_pool_strides[1];
  static constexpr int64_t kValuesStride = params.v_pool_strides[1];
};

inline void run(void* const* operands) {
  const PagedTables<kTables> tables(operands, kFailure);
  const int64_t at = blockIdx.x;
  const auto tensor = [&](int i) { return static_cast<T*>(operands[i]); };
  const auto angles = [&](int i) { return static_cast<const C*>(operands[i]); };
  const PagedDestination to = kept_destination<NPUSIM_BLOCK>(tables, at);
  paged_rope::Row row{
      tensor(kQ) + at * params.q_strides[1],
      tensor(kK) + at * params.k_strides[1],
      tensor(kValue) + at * params.v_strides[1],
      angles(kCos) + at * params.cs_strides[0],
      angles(kSin) + at * params.cs_strides[1],
      tensor(kY) + at * params.y_strides[1],
      tensor(kKeys) + to.page * params.k_pool_strides[0] + to.row * params.k_pool_strides[2],
      tensor(kValues) + to.page * params.v_pool_strides[0] + to.row * params.v_pool_strides[2],
      true};
#pragma unroll
  for (const int i : {kQ, kK, kValue, kCos, kSin, kY, kKeys, kValues})
    row.wide = row.wide && is_aligned(operands[i], 16);
  paged_rope::Units<Heads, NPUSIM_EACH>::run(row, to.page >= 0, threadIdx.x, NPUSIM_BLOCK);
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}
