// One new token's attention over a cache: its query and key are rotated, key and value appended,
// and the query attends to the rows in use, on the tensor cores (warp_tile.h).
//
// A cluster of NPUSIM_CLUSTER_SIZE blocks computes the query heads of one key/value head, as rows
// of the tensor core's A. Its warps divide the keys in slices of 16: each warp loads its own
// slices, NPUSIM_STAGES ahead, and at the end sends its sums through distributed shared memory to
// the blocks that store them; warps do not wait for each other before. Rows that the cache had
// before this step are loaded before the wait, where nothing else in the method writes them.
// Devices without clusters run one block in place of each cluster.
//
// Many keys are divided among up to NPUSIM_CLUSTERS clusters, whose partial results go through
// scratch memory. Of the blocks with the same part of y the last to finish adds them up, in the
// order of clusters.
#include "kernels/cuda/attention/scores.h"
#include "kernels/cuda/attention/warp_tile.h"
#include "kernels/cuda/common/arrival.h"
#include "kernels/cuda/common/cluster_exchange.h"

namespace npusim {

constexpr int kThreads = NPUSIM_BLOCK, kWarps = kThreads / 32, kWarpKeys = 16;
constexpr int kStages = NPUSIM_STAGES;
static_assert(kGroup <= 16 && kD % 16 == 0 && kV % 16 == 0);

enum Operands { kQ, kKey, kValue, kCos, kSin, kPosition, kKeys, kValues, kY, kScratch };
constexpr int kClusters = NPUSIM_CLUSTERS;
constexpr int kFailure = kClusters > 1 ? kScratch + 1 : kScratch;
constexpr unsigned kCacheBits = 1u << kPosition | 1u << kKeys | 1u << kValues;
constexpr bool kCacheUnwritten = (unwritten_operands & kCacheBits) == kCacheBits;
constexpr int kHalves = kGroup > 8 ? 2 : 1;  // of the tensor core's 16 rows, that have heads
constexpr int kRanks = kHasClusters ? NPUSIM_CLUSTER_SIZE : 1;
constexpr int kReadingWarps = NPUSIM_READING_WARPS;  // warps of a block that read slices
constexpr int kReaders = kRanks * kReadingWarps;     // of a cluster, which divide its slices
constexpr int kMostSlicesOfOneCluster = 2;  // up to which one cluster is faster than several

constexpr int kKBytes = kWarpKeys * kDLine, kSlice = kWarpKeys * (kDLine + kVLine);
constexpr int kPairs = kGroup * kV / 2;                        // of neighbouring elements of y
constexpr int kPairsOfBlock = (kPairs + kRanks - 1) / kRanks;  // that a block adds up and stores
constexpr int kReceivedAt = 16 * kDLine;  // after the queries: sums from all warps
constexpr int kWeights =
    kReceivedAt + kReaders * kPairsOfBlock * 8;  // after them: their row maxima and row sums
constexpr int kSlices = (kWeights + kReaders * kGroup * 8 + 15) / 16 * 16;  // where slices begin
static_assert(kReadingWarps <= kWarps &&
              kSlices + kReadingWarps * kStages * kSlice <= NPUSIM_SHARED);

extern __shared__ __align__(128) unsigned char shared_memory[];

// How many clusters have stored partial results, by head and by rank of the block.
unsigned arrived[params.batch * params.kv_heads][kRanks];

// Element `at` of a row, rotated.
template <typename A>
T rotated(const T* x, const A* cos, const A* sin, int at) {
  constexpr int kRotated = static_cast<int>(params.rotary_dim), kHalf = kRotated / 2;
  if (at >= kRotated) return x[at];
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

// Loads the rows of a slice that lie in the cache: all, or the first `count` of them, where row
// `count` is left as it is and those after it become zero.
template <bool kAll, int kColumns, int kLine>
void fill_cached(unsigned to, const T* from, int64_t stride, int count) {
  constexpr int kChunks = kColumns / 8;
#pragma unroll
  for (int n = 0; n < kWarpKeys * kChunks / 32; ++n) {
    const int i = n * 32 + threadIdx.x % 32, row = i / kChunks, chunk = i % kChunks;
    if (!kAll && row == count) continue;
    const bool exists = kAll || row < count;
    cp_async(to + at_chunk(kLine, row, chunk), from + (exists ? row : 0) * stride + chunk * 8,
             exists);
  }
}

// A warp's slices of one key/value head of one batch item: every kReaders-th, the last one first.
// The new key and value are in the first slice of the warp that has them.
struct Step {
  using A = Storage<params.cs_dtype>;
  int64_t batch, kv_head, position;
  bool fits;
  int64_t begin;          // the first key that is visible
  int cluster, clusters;  // this one, and those that divide the keys
  int rank, reader;       // in the cluster: of this block, and of this warp
  int slices, turns;      // of all, and of this warp
  int new_warp;           // of this block, that has the new key and value; -1: another block
  const T *keys, *values;

  explicit Step(void* const* operands)
      : batch(blockIdx.y / params.kv_heads), kv_head(blockIdx.y % params.kv_heads) {
    position = *static_cast<const int64_t*>(operands[kPosition]);
    fits = position >= 0 && position < params.limit;
    const int64_t used = fits ? position + 1 : 0;
    begin = params.window > 0 ? larger<int64_t>(0, used - params.window) : 0;
    slices = static_cast<int>(ceil_div(used - begin, kWarpKeys));
    cluster = static_cast<int>(blockIdx.x) / NPUSIM_CLUSTER_SIZE;
    clusters = slices <= kMostSlicesOfOneCluster * kReaders
                   ? 1
                   : smaller<int>(kClusters, ceil_div(slices, kReaders));
    rank = static_cast<int>(blockIdx.x) % NPUSIM_CLUSTER_SIZE;
    reader = static_cast<int>(threadIdx.x) / 32 * kRanks + rank;
    const int first = cluster * kReaders + reader, all = clusters * kReaders;
    const bool reads = static_cast<int>(threadIdx.x) / 32 < kReadingWarps;
    turns = reads && first < slices ? (slices - first + all - 1) / all : 0;
    const int last = (slices - 1) % all - cluster * kReaders;
    const bool has_last = slices > 0 && last >= 0 && last < kReaders && last % kRanks == rank;
    new_warp = has_last ? last / kRanks : -1;
    keys = static_cast<const T*>(operands[kKeys]) + batch * params.k_cache_strides[0] +
           kv_head * params.k_cache_strides[1];
    values = static_cast<const T*>(operands[kValues]) + batch * params.v_cache_strides[0] +
             kv_head * params.v_cache_strides[1];
  }
  // Whether the cluster has keys to see, or is the one that says that there are none.
  bool takes_part() const { return cluster < clusters; }
  // Warps of the cluster that have slices.
  int readers() const { return smaller(slices - cluster * kReaders, kReaders); }
  // Bytes that each of them sends this block: its pairs of y, and the heads' row maxima
  // and sums.
  int received_bytes() const {
    return 8 * (kGroup + larger(0, smaller(kPairsOfBlock, kPairs - rank * kPairsOfBlock)));
  }
  // Where the slice of a warp's turn begins.
  int64_t key(int turn) const {
    const int64_t round = static_cast<int64_t>(turns - 1 - turn) * clusters + cluster;
    return begin + (round * kReaders + reader) * kWarpKeys;
  }
  static unsigned slot(unsigned shared, int warp, int turn) {
    return shared + kSlices + (warp * kStages + turn % kStages) * kSlice;
  }

  // Starts loading the slice of a turn. The first one may lack rows.
  template <bool kAll>
  void fill(unsigned shared, int turn) const {
    if (turn < turns) {
      const unsigned to = slot(shared, threadIdx.x / 32, turn);
      const int64_t row = key(turn);
      const int count = static_cast<int>(smaller<int64_t>(position - row, kWarpKeys));
      fill_cached<kAll, kD, kDLine>(to, keys + row * params.k_cache_strides[2],
                                    params.k_cache_strides[2], count);
      fill_cached<kAll, kV, kVLine>(to + kKBytes, values + row * params.v_cache_strides[2],
                                    params.v_cache_strides[2], count);
    }
    cp_async_commit();
  }

  // Prefetches the slices after the first ones to L2.
  void fetch_ahead() const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int turn = kStages; turn < turns; ++turn) {
      const int64_t row = key(turn) + lane % 16;
      if (lane < 16) {
        prefetch_l2(keys + row * params.k_cache_strides[2], kD * 2);
      } else {
        prefetch_l2(values + row * params.v_cache_strides[2], kV * 2);
      }
    }
  }

  // The rotated queries, and the new key and value where this block has their slice: to shared
  // memory, and to the caches. All loads are issued before the first result is used.
  void read_token(void* const* operands, unsigned shared) const {
    constexpr int kTurns = kD / 2, kRounds = ((kGroup + 1) * kTurns + kThreads - 1) / kThreads;
    constexpr int kValueRounds = (kV / 2 + kThreads - 1) / kThreads;
    const A* cos = static_cast<const A*>(operands[kCos]) + batch * params.cs_strides[0];
    const A* sin = static_cast<const A*>(operands[kSin]) + batch * params.cs_strides[1];
    const T* q = static_cast<const T*>(operands[kQ]) + batch * params.q_strides[0] +
                 kv_head * kGroup * params.q_strides[1];
    const T* k = static_cast<const T*>(operands[kKey]) + batch * params.k_strides[0] +
                 kv_head * params.k_strides[1];
    const T* v = static_cast<const T*>(operands[kValue]) + batch * params.v_strides[0] +
                 kv_head * params.v_strides[1];
    const int rows = new_warp >= 0 ? kGroup + 1 : kGroup;
    T pairs[kRounds][2], values_pair[kValueRounds][2];
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int i = n * kThreads + threadIdx.x, row = smaller(i / kTurns, rows - 1);
      const T* x = row < kGroup ? q + row * params.q_strides[1] : k;
      pairs[n][0] = rotated(x, cos, sin, i % kTurns * 2);
      pairs[n][1] = rotated(x, cos, sin, i % kTurns * 2 + 1);
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const int at = smaller<int>((n * kThreads + threadIdx.x) * 2, kV - 2);
      values_pair[n][0] = v[at];
      values_pair[n][1] = v[at + 1];
    }
    const unsigned to = slot(shared, larger(new_warp, 0), 0);
    const int new_row = static_cast<int>((position - begin) % kWarpKeys);
    T* key_row = const_cast<T*>(keys) + position * params.k_cache_strides[2];
    T* value_row = const_cast<T*>(values) + position * params.v_cache_strides[2];
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int i = n * kThreads + threadIdx.x, row = i / kTurns, at = i % kTurns * 2;
      if (row >= rows) continue;
      const bool is_new = row == kGroup;
      put_pair<kDLine>(is_new ? to : shared, is_new ? new_row : row, at, pairs[n][0], pairs[n][1],
                       is_new ? key_row : nullptr);
    }
#pragma unroll
    for (int n = 0; n < kValueRounds; ++n) {
      const int at = (n * kThreads + threadIdx.x) * 2;
      if (new_warp < 0 || at >= kV) continue;
      put_pair<kVLine>(to + kKBytes, new_row, at, values_pair[n][0], values_pair[n][1], value_row);
    }
  }
};

// This warp's sums over its slices.
inline void attend(const Step& step, unsigned shared, WarpAccumulator<kHalves>& accumulator) {
  const int lane = threadIdx.x % 32;
  // Not kept in registers, which blocks of the launches before and after this one need.
  const Queries<false> queries{shared, {}};
#pragma unroll 1
  for (int turn = 0; turn < step.turns; ++turn) {
    cp_async_wait<kStages - 1>();
    __syncwarp();
    const unsigned at = Step::slot(shared, threadIdx.x / 32, turn);
    float scores[kWarpKeys / 8][4];
    queries.dot(at, 0, scores);
    const int64_t last_visible = step.position - step.key(turn);  // the last visible key
    const int last = static_cast<int>(smaller<int64_t>(last_visible, kWarpKeys)) - lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kWarpKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool sees = j * 8 + e % 2 <= last;
        scores[j][e] = sees ? scaled(scores[j][e]) : kMasked;
      }
    }
    accumulator.update_softmax(scores);
    accumulator.accumulate_values(scores, at + kKBytes, 0);
    __syncwarp();
    step.fill<true>(shared, turn + kStages);
  }
  cp_async_wait<0>();
}

// Two floats to `at` in the shared memory of the cluster's block `rank`.
inline void send_pair(unsigned at, unsigned exchange, int rank, float first, float second) {
  if constexpr (kRanks > 1) {
    exchange_store(map_shared_rank(at, rank), map_shared_rank(exchange, rank), first, second);
  } else {
    store_shared(at, first, second);
  }
}

// Sends each block its pairs of this warp's sums, and every block the row maxima and sums.
inline void send_sums(const Step& step, const WarpAccumulator<kHalves>& accumulator,
                      unsigned shared, unsigned exchange) {
  const int lane = threadIdx.x % 32;
  const unsigned received = shared + kReceivedAt + step.reader * kPairsOfBlock * 8;
  const unsigned weights = shared + kWeights + step.reader * kGroup * 8;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = lane / 4 + half * 8;
    float row_sum = accumulator.row_sum[half];
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    if (row >= kGroup) continue;
#pragma unroll
    for (int rank = 0; rank < kRanks; rank += 4) {
      if (rank + lane % 4 >= kRanks) continue;
      send_pair(weights + row * 8, exchange, rank + lane % 4, accumulator.row_max[half], row_sum);
    }
#pragma unroll
    for (int j = 0; j < kVBlocks; ++j) {
      const int pair = row * (kV / 2) + j * 4 + lane % 4;
      send_pair(received + pair % kPairsOfBlock * 8, exchange, pair / kPairsOfBlock,
                accumulator.sums[j][half * 2], accumulator.sums[j][half * 2 + 1]);
    }
  }
}

// Sums of a pair of y relative to a row maximum; 16 bytes of scratch memory.
struct alignas(16) Partial {
  float row_max, row_sum, first, second;
};

inline void store_pair(const Step& step, int pair, const Partial& sums, T* y) {
  const int64_t head = step.kv_head * kGroup + pair * 2 / kV;
  T* to = y + step.batch * params.y_strides[0] + head * params.y_strides[1] + pair * 2 % kV;
  const bool any = sums.row_sum != 0.0f;  // NaN is kept
  to[0] = encode<T>(any ? sums.first / sums.row_sum : 0.0f);
  to[1] = encode<T>(any ? sums.second / sums.row_sum : 0.0f);
}

// Adds up what all warps have sent of this block's pairs of y, four threads a pair, and stores them
// in y, or in scratch memory where several clusters divide the keys.
inline void store_pairs(const Step& step, const unsigned char* memory, T* y, Partial* partials) {
  const float* received = reinterpret_cast<const float*>(memory + kReceivedAt);
  const float* weights = reinterpret_cast<const float*>(memory + kWeights);
  const int part = threadIdx.x % 4, count = step.readers();
#pragma unroll 1
  for (int n = 0; n < (kPairsOfBlock * 4 + kThreads - 1) / kThreads; ++n) {
    const int i = (n * kThreads + static_cast<int>(threadIdx.x)) / 4;
    const int pair = step.rank * kPairsOfBlock + i;
    const bool exists = i < kPairsOfBlock && pair < kPairs;
    const int row = exists ? pair * 2 / kV : 0, at = exists ? i : 0;
    Partial sums{kMasked, 0.0f, 0.0f, 0.0f};
    for (int r = part; r < count; r += 4) {
      sums.row_max = fmaxf(sums.row_max, weights[(r * kGroup + row) * 2]);
    }
    sums.row_max = fmaxf(sums.row_max, __shfl_xor_sync(0xffffffffu, sums.row_max, 1));
    sums.row_max = fmaxf(sums.row_max, __shfl_xor_sync(0xffffffffu, sums.row_max, 2));
    for (int r = part; r < count; r += 4) {
      const float* weight = weights + (r * kGroup + row) * 2;
      const float scale = rescale(weight[0], sums.row_max);
      sums.row_sum += scale * weight[1];
      sums.first += scale * received[(r * kPairsOfBlock + at) * 2];
      sums.second += scale * received[(r * kPairsOfBlock + at) * 2 + 1];
    }
#pragma unroll
    for (int far = 1; far < 4; far *= 2) {
      sums.row_sum += __shfl_xor_sync(0xffffffffu, sums.row_sum, far);
      sums.first += __shfl_xor_sync(0xffffffffu, sums.first, far);
      sums.second += __shfl_xor_sync(0xffffffffu, sums.second, far);
    }
    if (!exists || part > 0) continue;
    if (step.clusters == 1) {
      store_pair(step, pair, sums, y);
    } else {
      partials[step.cluster * kPairs + pair] = sums;
    }
  }
}

// Adds up the partial results of all clusters for this block's pairs of y.
inline void store_total(const Step& step, const Partial* partials, T* y) {
  const int end = smaller(kPairs, (step.rank + 1) * kPairsOfBlock);
  for (int pair = step.rank * kPairsOfBlock + threadIdx.x; pair < end; pair += kThreads) {
    Partial parts[kClusters], sums{kMasked, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < kClusters; ++c) {
      if (c < step.clusters) parts[c] = partials[c * kPairs + pair];
    }
#pragma unroll
    for (int c = 0; c < kClusters; ++c) {
      if (c < step.clusters) sums.row_max = fmaxf(sums.row_max, parts[c].row_max);
    }
#pragma unroll
    for (int c = 0; c < kClusters; ++c) {
      if (c >= step.clusters) continue;
      const float scale = rescale(parts[c].row_max, sums.row_max);
      sums.row_sum += scale * parts[c].row_sum;
      sums.first += scale * parts[c].first;
      sums.second += scale * parts[c].second;
    }
    store_pair(step, pair, sums, y);
  }
}

inline void run(void* const* operands) {
  if constexpr (!kCacheUnwritten) wait_on_dependencies();
  if (static_cast<int>(blockIdx.x) % NPUSIM_CLUSTER_SIZE >= kRanks)
    return;  // there are no clusters
  const Step step(operands);
  if (!step.takes_part()) return;
  __shared__ unsigned long long barrier;
  const unsigned shared = shared_address(shared_memory);
  const unsigned exchange = kRanks > 1 ? shared_address(&barrier) : 0;
  if (threadIdx.x == 0) init_exchange(exchange);
  exchange_arrive();
  step.fill<false>(shared, 0);
#pragma unroll 1
  for (int i = 1; i < kStages; ++i) step.fill<true>(shared, i);
  if constexpr (kCacheUnwritten) step.fetch_ahead();
  cluster_wait();
  if (threadIdx.x == 0) expect_exchange(exchange, step.readers() * step.received_bytes());
  if constexpr (kCacheUnwritten) wait_on_dependencies();
  if (!step.fits) {
    if (threadIdx.x == 0) {
      report(static_cast<Failure*>(operands[kFailure]), kOutOfRange, step.position,
             params.limit - 1);
    }
    return cp_async_wait<0>();
  }
  if (step.rank < step.readers()) {
    step.read_token(operands, shared);
    __syncthreads();
    if (step.turns > 0) {
      WarpAccumulator<kHalves> accumulator;
      attend(step, shared, accumulator);
      send_sums(step, accumulator, shared, exchange);
    }
  }
  if constexpr (kRanks > 1) {
    wait_exchange(exchange);
  } else {
    __syncthreads();
  }
  T* y = static_cast<T*>(operands[kY]);
  Partial* partials = static_cast<Partial*>(operands[kScratch]) + blockIdx.y * kClusters * kPairs;
  store_pairs(step, shared_memory, y, partials);
  if (step.clusters > 1 && arrives_last(arrived[blockIdx.y][step.rank], step.clusters)) {
    store_total(step, partials, y);
  }
}

// Blocks that a multiprocessor should hold. From sm_100 on the code takes over 170 registers, and
// would spill some of them to make a second block fit.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kBlocksPerSm = 1;
#else
constexpr int kBlocksPerSm = NPUSIM_BLOCKS_PER_SM;
#endif

}  // namespace npusim

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define NPUSIM_CLUSTER_DIMS __cluster_dims__(NPUSIM_CLUSTER_SIZE, 1, 1)
#else
#define NPUSIM_CLUSTER_DIMS
#endif
extern "C" __global__ void NPUSIM_CLUSTER_DIMS __launch_bounds__(NPUSIM_BLOCK, npusim::kBlocksPerSm)
    npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}
