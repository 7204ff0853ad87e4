// One new token's attention over a cache: its query and key are rotated, key and value appended,
// and the query attends to the rows in use, on the tensor cores (mma_attention_warp.h).
//
// The heads of a group are the rows of a cluster of NPUSIM_SPANS blocks, which share the tiles of
// NPUSIM_TILE_KEYS keys and put their sums together in each other's shared memory. A block's warps
// have 16 keys of a tile each. Rows that were in the cache before are asked for before the wait,
// where nothing in the method writes them but this command. Devices without clusters give all
// tiles to one block.
#include "kernels/cuda/attention_scores.h"

namespace npusim {

constexpr int kThreads = NPUSIM_BLOCK, kWarps = kThreads / 32, kWarpKeys = 16;
constexpr int kTile = NPUSIM_TILE_KEYS, kStages = NPUSIM_STAGES;
constexpr bool kKeepQ = false;  // registers are for blocks of the products in front and behind
static_assert(kWarps * kWarpKeys == kTile && kGroup <= 16 && kD % 16 == 0 && kV % 16 == 0);

}  // namespace npusim

#include "kernels/cuda/mma_attention_warp.h"
#include "kernels/cuda/mma_cluster.h"

namespace npusim {

enum Operands { kQ, kKey, kValue, kCos, kSin, kPosition, kKeys, kValues, kY, kFailure };
constexpr unsigned kCacheBits = 1u << kPosition | 1u << kKeys | 1u << kValues;
constexpr bool kCacheSettled = (settled_operands & kCacheBits) == kCacheBits;
constexpr int kRanks = kHasClusters ? NPUSIM_SPANS : 1;

constexpr int kKBytes = kTile * kDLine, kTileBytes = kTile * (kDLine + kVLine);
constexpr int kNewRows = 16 * kDLine;                    // the new key, then the new value
constexpr int kTiles = kNewRows + kDLine + kVLine;       // where tiles begin
constexpr int kSums = kVBlocks * 8 + 8;                  // spreads rows over banks
constexpr int kResult = kV + 2;                          // of a head: sums, top, total
constexpr int kResults = kWarps * kGroup * (kSums + 2);  // where a block's results begin, in floats
static_assert(kTiles + kStages * kTileBytes <= NPUSIM_SHARED);
static_assert(kTiles + 4 * (kResults + kGroup * kResult) <= NPUSIM_SHARED);

extern __shared__ __align__(128) unsigned char shared_memory[];

// Element `at` of a row, rotated.
template <typename A>
T rotated(const T* x, const A* cos, const A* sin, int at) {
  constexpr int kTurned = static_cast<int>(params.rotary_dim), kHalf = kTurned / 2;
  if (at >= kTurned) return x[at];
  const bool first = params.interleaved ? at % 2 == 0 : at < kHalf;
  const int other = params.interleaved ? at ^ 1 : first ? at + kHalf : at - kHalf;
  const float a = to_float(x[at]), b = to_float(x[other]);
  const float c = to_float(cos[at]), s = to_float(sin[at]);
  return encode<T>(first ? a * c - b * s : a * c + b * s);
}

// Two neighbours at a time to shared memory, and to `kept` where that is not null.
template <int kLine>
void put_pair(unsigned to, int row, int at, T first, T second, T* kept) {
  const unsigned both = first.bits | static_cast<unsigned>(second.bits) << 16;
  const unsigned place = to + at_chunk(kLine, row, at / 8) + at % 8 * 2;
  store_shared(place, both);
  if (kept != nullptr) *reinterpret_cast<unsigned*>(kept + at) = both;
}

// Rows of a tile that lie in the cache; row `count` is left out, those behind it are zero.
template <int kColumns, int kLine>
void fill_cached(unsigned to, const T* from, int64_t stride, int count) {
  constexpr int kChunks = kColumns / 8;
#pragma unroll
  for (int n = 0; n < (kTile * kChunks + kThreads - 1) / kThreads; ++n) {
    const int i = n * kThreads + threadIdx.x, row = i / kChunks, chunk = i % kChunks;
    if (i >= kTile * kChunks || row == count) continue;
    copy_chunk<true>(to + at_chunk(kLine, row, chunk),
                     from + (row < count ? row : 0) * stride + chunk * 8, row < count ? 8 : 0);
  }
}

// The cluster's share of one key/value head of one batch item.
struct Step {
  using A = Storage<params.cs_dtype>;
  int64_t batch, kv_head, position;
  bool fits;
  int64_t begin;                  // the first key that is seen
  int tiles, first, last, spans;  // of all, this block's, blocks that have some
  const T *keys, *values;

  explicit Step(void* const* operands)
      : batch(blockIdx.y / params.kv_heads), kv_head(blockIdx.y % params.kv_heads) {
    position = *static_cast<const int64_t*>(operands[kPosition]);
    fits = position >= 0 && position < params.limit;
    const int64_t used = fits ? position + 1 : 0;
    begin = params.window > 0 ? larger<int64_t>(0, used - params.window) : 0;
    tiles = static_cast<int>(ceil_div(used - begin, kTile));
    const int each = (tiles + kRanks - 1) / kRanks, rank = static_cast<int>(blockIdx.x);
    first = smaller(rank * each, tiles);
    last = smaller(first + each, tiles);
    spans = each > 0 ? (tiles + each - 1) / each : 0;
    keys = static_cast<const T*>(operands[kKeys]) + batch * params.k_cache_strides[0] +
           kv_head * params.k_cache_strides[1];
    values = static_cast<const T*>(operands[kValues]) + batch * params.v_cache_strides[0] +
             kv_head * params.v_cache_strides[1];
  }
  bool has_new() const { return first < last && last == tiles; }
  int64_t key(int tile) const { return begin + static_cast<int64_t>(tile) * kTile; }

  void fill(unsigned shared, int tile) const {
    if (tile < last) {
      const unsigned to = shared + kTiles + (tile - first) % kStages * kTileBytes;
      const int64_t row = key(tile);
      const int count = static_cast<int>(smaller<int64_t>(position - row, kTile));
      fill_cached<kD, kDLine>(to, keys + row * params.k_cache_strides[2], params.k_cache_strides[2],
                              count);
      fill_cached<kV, kVLine>(to + kKBytes, values + row * params.v_cache_strides[2],
                              params.v_cache_strides[2], count);
    }
    commit_copies();
  }

  // The rotated queries, and the new key and value where this block has their tile: to shared
  // memory, and to the caches. All is asked for before the first of it is used.
  void read_token(void* const* operands, unsigned shared) const {
    constexpr int kPairs = kD / 2, kRounds = ((kGroup + 1) * kPairs + kThreads - 1) / kThreads;
    constexpr int kValueRounds = (kV / 2 + kThreads - 1) / kThreads;
    const A* cos = static_cast<const A*>(operands[kCos]) + batch * params.cs_strides[0];
    const A* sin = static_cast<const A*>(operands[kSin]) + batch * params.cs_strides[1];
    const T* q = static_cast<const T*>(operands[kQ]) + batch * params.q_strides[0] +
                 kv_head * kGroup * params.q_strides[1];
    const T* k = static_cast<const T*>(operands[kKey]) + batch * params.k_strides[0] +
                 kv_head * params.k_strides[1];
    const T* v = static_cast<const T*>(operands[kValue]) + batch * params.v_strides[0] +
                 kv_head * params.v_strides[1];
    const int rows = has_new() ? kGroup + 1 : kGroup;
    T pairs[kRounds][2], values_pair[kValueRounds][2];
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int i = n * kThreads + threadIdx.x, row = smaller(i / kPairs, rows - 1);
      const T* x = row < kGroup ? q + row * params.q_strides[1] : k;
      pairs[n][0] = rotated(x, cos, sin, i % kPairs * 2);
      pairs[n][1] = rotated(x, cos, sin, i % kPairs * 2 + 1);
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const int at = smaller<int>((n * kThreads + threadIdx.x) * 2, kV - 2);
      values_pair[n][0] = v[at];
      values_pair[n][1] = v[at + 1];
    }
    T* key_row = const_cast<T*>(keys) + position * params.k_cache_strides[2];
    T* value_row = const_cast<T*>(values) + position * params.v_cache_strides[2];
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int i = n * kThreads + threadIdx.x, row = i / kPairs, at = i % kPairs * 2;
      if (row >= rows) continue;
      const bool is_new = row == kGroup;
      put_pair<kDLine>(shared + (is_new ? kNewRows : 0), is_new ? 0 : row, at, pairs[n][0],
                       pairs[n][1], is_new ? key_row : nullptr);
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const int at = (n * kThreads + threadIdx.x) * 2;
      if (!has_new() || at >= kV) continue;
      put_pair<kVLine>(shared + kNewRows + kDLine, 0, at, values_pair[n][0], values_pair[n][1],
                       value_row);
    }
  }

  // Puts the new key and value at their place in the last tile.
  void insert(unsigned shared) const {
    const unsigned to = shared + kTiles + (tiles - 1 - first) % kStages * kTileBytes;
    const int row = static_cast<int>(position - key(tiles - 1));
    const int i = threadIdx.x;
    const unsigned from = shared + kNewRows + (i << 4);
    if (i < kD / 8) store_shared(to + at_chunk(kDLine, row, i), load_shared(from));
    if (i < kV / 8) {
      store_shared(to + kKBytes + at_chunk(kVLine, row, i), load_shared(from + kDLine));
    }
  }
};

// This warp's sums over the block's tiles.
inline void attend(const Step& step, unsigned shared, WarpRows& rows) {
  const int lane = threadIdx.x % 32, warp_key = threadIdx.x / 32 * kWarpKeys;
  Queries queries{shared, {}};
#pragma unroll 1
  for (int tile = step.first; tile < step.last; ++tile) {
    wait_copies<kStages - 1>();
    if (step.has_new() && tile == step.last - 1) {
      __syncthreads();  // zeros of other threads lie around the new row, and it was written
      step.insert(shared);
    }
    __syncthreads();
    if (tile == step.first) queries.keep();
    const unsigned at = shared + kTiles + (tile - step.first) % kStages * kTileBytes;
    float scores[kWarpKeys / 8][4];
    queries.dot(at, warp_key, scores);
    const int64_t key = step.key(tile) + warp_key + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kWarpKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool sees = key + j * 8 + e % 2 <= step.position;
        scores[j][e] = sees ? scaled(scores[j][e]) : kNothing;
      }
    }
    rows.weigh(scores);
    rows.add_values(scores, at + kKBytes, warp_key);
    __syncthreads();
    step.fill(shared, tile + kStages);
  }
}

// Adds up the warps of a block: sums, top and total of each head, to `result`.
inline void combine_warps(const WarpRows& rows, float* sums, float* result) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* tops = sums + kWarps * kGroup * kSums;
  float* totals = tops + kWarps * kGroup;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    float total = rows.total[half];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (row >= kGroup) continue;
    const int at = warp * kGroup + row;
    if (lane % 4 == 0) {
      tops[at] = rows.top[half];
      totals[at] = total;
    }
#pragma unroll
    for (int j = 0; j < kVBlocks; ++j) {
      float* to = sums + at * kSums + j * 8 + lane % 4 * 2;
      to[0] = rows.sums[j][half * 2];
      to[1] = rows.sums[j][half * 2 + 1];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kGroup * kV; i += kThreads) {
    const int row = i / kV, column = i % kV;
    float top = kNothing, total = 0.0f, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w * kGroup + row]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = shrink(tops[w * kGroup + row], top);
      total += share * totals[w * kGroup + row];
      sum += share * sums[(w * kGroup + row) * kSums + column];
    }
    float* to = result + row * kResult;
    to[column] = sum;
    if (column == 0) {
      to[kV] = top;
      to[kV + 1] = total;
    }
  }
}

// What block `rank` of the cluster has where this one has `mine`.
inline float of_block(const float* mine, int rank) {
  if constexpr (kRanks > 1) return load_in_cluster(address_in_block(shared_address(mine), rank));
  return *mine;
}

// Adds up the blocks of a cluster and stores this block's share of y.
inline void combine_blocks(const Step& step, const float* result, T* y) {
  const int workers = step.spans > 1 ? kRanks : 1;
  const int rank = step.spans > 1 ? static_cast<int>(blockIdx.x) : 0;
  for (int i = rank * kThreads + threadIdx.x; i < kGroup * kV; i += workers * kThreads) {
    const int row = i / kV, column = i % kV;
    const float* mine = result + row * kResult;
    float tops[kRanks], totals[kRanks], sums[kRanks], top = kNothing;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      tops[r] = kNothing;
      totals[r] = sums[r] = 0.0f;
      if (r >= step.spans) continue;
      tops[r] = of_block(mine + kV, r);
      totals[r] = of_block(mine + kV + 1, r);
      sums[r] = of_block(mine + column, r);
    }
#pragma unroll
    for (int r = 0; r < kRanks; ++r) top = fmaxf(top, tops[r]);
    float total = 0.0f, sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      const float share = shrink(tops[r], top);
      total += share * totals[r];
      sum += share * sums[r];
    }
    const int64_t head = step.kv_head * kGroup + row;
    y[step.batch * params.y_strides[0] + head * params.y_strides[1] + column] =
        encode<T>(total > 0.0f ? sum / total : 0.0f);
  }
}

inline void run(void* const* operands) {
  if constexpr (!kCacheSettled) await_operands();
  if (static_cast<int>(blockIdx.x) >= kRanks) return await_operands();
  const Step step(operands);
  const unsigned shared = shared_address(shared_memory);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) step.fill(shared, step.first + i);
  if constexpr (kCacheSettled) await_operands();
  if (!step.fits) {
    if (threadIdx.x == 0) {
      report(static_cast<Failure*>(operands[kFailure]), kOutOfRange, step.position,
             params.limit - 1);
    }
    return wait_copies<0>();
  }
  float* sums = reinterpret_cast<float*>(shared_memory + kTiles);
  float* result = sums + kResults;
  if (step.first < step.last) {
    step.read_token(operands, shared);
    WarpRows rows;
    attend(step, shared, rows);
    wait_copies<0>();
    __syncthreads();
    combine_warps(rows, sums, result);
  }
  T* y = static_cast<T*>(operands[kY]);
  if (step.spans > 1) {
    arrive_in_cluster();
    wait_for_cluster();
    combine_blocks(step, result, y);
    arrive_in_cluster();
    wait_for_cluster();  // others read this block's shared memory until here
  } else if (step.first < step.last) {
    __syncthreads();
    combine_blocks(step, result, y);
  }
}

}  // namespace npusim

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define NPUSIM_CLUSTER __cluster_dims__(NPUSIM_SPANS, 1, 1)
#else
#define NPUSIM_CLUSTER
#endif
extern "C" __global__ void NPUSIM_CLUSTER __launch_bounds__(NPUSIM_BLOCK, NPUSIM_RESIDENT)
    npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::start_successors();
  npusim::run(operands);
}
