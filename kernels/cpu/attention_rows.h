// What the parts of attention share: how a command is cut into blocks of query rows, the scratch of
// a block, and where its rows, keys and values lie.
//
// The query heads that share a key/value head are rows of the same block: each key and value is
// read once for the whole group.
#pragma once

#include <algorithm>

#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/to_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kBlockRows = 64;  // of queries
inline constexpr int64_t kBlockKeys = 128;
inline constexpr int64_t kFewRows = 8;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr int32_t kBfloat16 = static_cast<int32_t>(abi::DType::kBfloat16);

// Whether rows of this storage multiply in pairs, with weights rounded to it.
template <typename T>
inline constexpr bool kInPairs = kDotsBfloat16 && __is_same(T, bfloat16);

// Rows of one (batch, key/value head) into blocks, and blocks into tasks.
struct AttentionPlan {
  int64_t group;       // query heads that share a key/value head
  int64_t rows;        // of one key/value head: queries x group, the heads of a query together
  int64_t vectors;     // rows in vectors
  int64_t blocks;      // row blocks of one key/value head
  int64_t block_rows;  // of the largest block, a multiple of kLanes
  int64_t total;       // blocks of the command
  int64_t per_task;    // blocks that a task takes

  explicit AttentionPlan(const abi::AttentionParams& p) {
    constexpr double kTaskWork = 1 << 17;  // multiply-adds worth handing to another worker
    group = p.heads / p.kv_heads;
    rows = group * p.q_len;
    vectors = (rows + kLanes - 1) / kLanes;
    blocks = (rows + kBlockRows - 1) / kBlockRows;
    block_rows = blocks ? (vectors + blocks - 1) / blocks * kLanes : 0;
    total = p.v_dim == 0 ? 0 : p.batch * p.kv_heads * blocks;
    const double work = static_cast<double>(std::min(block_rows, rows)) *
                        static_cast<double>(p.kv_len) * static_cast<double>(p.head_dim + p.v_dim);
    per_task = std::max<int64_t>(1, static_cast<int64_t>(kTaskWork / (work + 1)));
  }
  int64_t tasks() const { return (total + per_task - 1) / per_task; }
  // The row where a block begins; blocks differ by at most one vector.
  int64_t begin(int64_t block) const {
    const int64_t first = block * (vectors / blocks) + std::min(block, vectors % blocks);
    return std::min(first * kLanes, rows);
  }
};

struct AttentionScratch {
  int64_t depth;                // head_dim in whole vectors (of pairs)
  int64_t v_columns;            // v_dim in whole vectors (of pairs)
  float* q;                     // scaled queries, as the scores want them
  float* scores;                // scores, then weights
  float* sums;                  // [block_rows][v_columns]: the output before it is divided by total
  float *k, *v;                 // [kBlockKeys][depth or v_columns]: a block widened to float
  float *top, *total, *shrink;  // a row's largest score and sum so far; what a new top leaves of it
  int32_t *passed, *seen;       // the first key of the current block that a row sees, and the end
  // In pairs: the queries, unscaled; weights; a block's keys, where pairs must not reach into the
  // next row, and its values, two rows interleaved.
  bfloat16 *q_pairs, *weights, *k_pairs, *v_pairs;
  int64_t bytes;

  AttentionScratch(const abi::AttentionParams& p, const AttentionPlan& plan, void* base) {
    Arena arena(base);
    const int64_t rows = std::max(plan.block_rows, kFewRows);
    const bool pairs = kDotsBfloat16 && p.dtype == kBfloat16;
    const bool widens = p.dtype != 0 && !pairs;
    depth = round_up(p.head_dim, pairs ? kPairLanes : kLanes);
    v_columns = round_up(p.v_dim, pairs ? kPairLanes : kLanes);
    q = arena.take<float>(pairs ? 0 : depth * rows);
    scores = arena.take<float>(kBlockKeys * rows);
    sums = arena.take<float>(rows * v_columns);
    k = arena.take<float>(widens ? kBlockKeys * depth : 0);
    v = arena.take<float>(!pairs && (widens || p.v_dim != v_columns) ? kBlockKeys * v_columns : 0);
    q_pairs = arena.take<bfloat16>(pairs ? depth * rows : 0);
    weights = arena.take<bfloat16>(pairs ? kBlockKeys * rows : 0);
    k_pairs = arena.take<bfloat16>(pairs && p.head_dim % 2 ? kBlockKeys * depth : 0);
    v_pairs = arena.take<bfloat16>(pairs ? kBlockKeys * v_columns : 0);
    top = arena.take<float>(rows);
    total = arena.take<float>(rows);
    shrink = arena.take<float>(rows);
    passed = arena.take<int32_t>(rows);
    seen = arena.take<int32_t>(rows);
    bytes = arena.bytes();
  }
};

// The keys in use and how far the last one that a query sees lies ahead of it: parameters, or what
// the position operand holds when the command runs.
struct AttentionKeys {
  int64_t used, offset;

  // False, and reported, when the position is outside the cache. The operand is read once.
  bool read(const abi::AttentionParams& p, void* const* operands, Failure* failure) {
    used = p.kv_len;
    offset = p.causal_offset;
    if (!p.has_position) return true;
    int64_t position;
    std::memcpy(&position, operands[3 + p.has_mask], sizeof position);
    if (position < 0 || position > p.kv_len - p.q_len) {
      failure->report("position outside the cache", position, p.kv_len - p.q_len);
      return false;
    }
    used = position + p.q_len;
    offset = position;
    return true;
  }
};

// One block of query rows against one key/value head. T: storage.
template <typename T>
struct AttentionRows {
  const abi::AttentionParams& p;
  const AttentionPlan& plan;
  const AttentionKeys& in_use;
  int64_t kv_head, first, count;
  const T *q, *k, *v;
  const char* mask;
  T* y;

  AttentionRows(const abi::AttentionParams& p, const AttentionPlan& plan,
                const AttentionKeys& in_use, void* const* operands, int64_t index)
      : p(p), plan(plan), in_use(in_use) {
    const int64_t block = index % plan.blocks, head = index / plan.blocks;
    const int64_t batch = head / p.kv_heads;
    kv_head = head % p.kv_heads;
    first = plan.begin(block);
    count = plan.begin(block + 1) - first;
    q = static_cast<const T*>(operands[0]) + batch * p.q_strides[0];
    k = static_cast<const T*>(operands[1]) + batch * p.k_strides[0] + kv_head * p.k_strides[1];
    v = static_cast<const T*>(operands[2]) + batch * p.v_strides[0] + kv_head * p.v_strides[1];
    mask = nullptr;
    if (p.has_mask) {
      const int64_t bytes = batch * p.mask_strides[0] * element_size(p.mask_dtype);
      mask = static_cast<const char*>(operands[3]) + bytes;
    }
    y = static_cast<T*>(operands[3 + p.has_mask + p.has_position]) + batch * p.y_strides[0];
  }

  int64_t query(int64_t row) const { return (first + row) / plan.group; }
  int64_t head(int64_t row) const { return kv_head * plan.group + (first + row) % plan.group; }
  int64_t offset(int64_t row, const int64_t (&strides)[3]) const {
    return head(row) * strides[1] + query(row) * strides[2];
  }
  int64_t mask_offset(int64_t row) const {
    return head(row) * p.mask_strides[1] + query(row) * p.mask_strides[2];
  }
  // True when all rows have the same mask.
  bool mask_is_shared() const {
    return (p.mask_strides[2] == 0 || p.q_len == 1) && (p.mask_strides[1] == 0 || plan.group == 1);
  }

  StridedBlock<T> keys(int64_t key, int64_t n) const {
    return {k + key * p.k_strides[2], p.k_strides[2], 1, n, p.head_dim};
  }
  StridedBlock<T> values(int64_t key, int64_t n) const {
    return {v + key * p.v_strides[2], p.v_strides[2], 1, n, p.v_dim};
  }

  // Of keys [key, key + n), a row sees those from `passed` up to `seen`: the first lie before its
  // window, the last in its future.
  int64_t seen(int64_t row, int64_t key, int64_t n) const {
    if (!p.causal) return n;
    return std::clamp<int64_t>(query(row) + in_use.offset + 1 - key, 0, n);
  }
  int64_t passed(int64_t row, int64_t key, int64_t n) const {
    if (p.window == 0) return 0;
    return std::clamp<int64_t>(query(row) + in_use.offset + 1 - p.window - key, 0, n);
  }
};

// Calls f with a value of the storage type of a mask.
template <typename F>
inline void with_mask_type(int32_t dtype, F&& f) {
  if (dtype == static_cast<int32_t>(abi::DType::kBool)) return f(boolean{});
  with_float_type(dtype, f);
}

// What a mask adds to a score; bool: whether to attend.
inline float mask_value(boolean x) {
  return x.value ? 0.0f : -kInfinity;
}
template <typename M>
float mask_value(M x) {
  return to_float(x);
}
inline Vec mask_lanes(const boolean* x, int64_t n) {
  using Bytes = VectorOf<uint8_t, kLanes>::type;
  Bytes bytes{};
  std::memcpy(&bytes, x, static_cast<size_t>(std::min<int64_t>(n, kLanes)));
  return __builtin_convertvector(bytes, IVec) != 0 ? Vec{} : Vec{} - kInfinity;
}
template <typename M>
Vec mask_lanes(const M* x, int64_t n) {
  return load_lanes(x, n);
}

// What `n` scores, whole vectors, are once scaled and capped; queries that are not in pairs bring
// the scale with them.
template <typename T>
void finish_scores(const abi::AttentionParams& p, int64_t n, float* scores) {
  if (!kInPairs<T> && p.softcap == 0) return;
  const Vec scale = Vec{} + (kInPairs<T> ? p.scale : 1.0f);
  if (p.softcap == 0) {
    for (int64_t j = 0; j < n; j += kLanes) store(scores + j, load(scores + j) * scale);
    return;
  }
  const Vec inverse = scale / p.softcap;
  for (int64_t j = 0; j < n; j += kLanes) {
    store(scores + j, p.softcap * tanh(load(scores + j) * inverse));
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
