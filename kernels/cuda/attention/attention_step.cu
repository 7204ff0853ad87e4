// One new token's attention over a cache: its query and key are rotated, key and value appended,
// and the query attends to the rows in use, on the tensor cores (warp_tile.h).
//
// The heads of a group are the rows of a cluster of NPUSIM_CLUSTER_SIZE blocks, whose warps share
// slices of 16 keys: each reads its own ahead, NPUSIM_STAGES of them, and sends its sums to the
// blocks that store them; no warp waits for another before that. Rows that were in the cache before
// are asked for before the wait, where nothing in the method writes them but this command. Devices
// without clusters have one block in place of each.
//
// Many keys are shared by up to NPUSIM_CLUSTERS of them. What each makes of its keys goes through
// scratch memory; the block that comes last of those with the same share of y adds it up, in the
// order of clusters.
#include "kernels/cuda/attention/scores.h"

namespace npusim {

constexpr int kThreads = NPUSIM_BLOCK, kWarps = kThreads / 32, kWarpKeys = 16;
constexpr int kStages = NPUSIM_STAGES;
constexpr bool kKeepQ = false;  // registers are for blocks of the products in front and behind
static_assert(kGroup <= 16 && kD % 16 == 0 && kV % 16 == 0);

}  // namespace npusim

#include "kernels/cuda/attention/warp_tile.h"
#include "kernels/cuda/common/arrival.h"
#include "kernels/cuda/common/cluster_exchange.h"

namespace npusim {

enum Operands { kQ, kKey, kValue, kCos, kSin, kPosition, kKeys, kValues, kY, kScratch };
constexpr int kClusters = NPUSIM_CLUSTERS;
constexpr int kFailure = kClusters > 1 ? kScratch + 1 : kScratch;
constexpr unsigned kCacheBits = 1u << kPosition | 1u << kKeys | 1u << kValues;
constexpr bool kCacheUnwritten = (unwritten_operands & kCacheBits) == kCacheBits;
constexpr int kHalves = kGroup > 8 ? 2 : 1;  // of the tensor core's rows, that have heads
constexpr int kRanks = kHasClusters ? NPUSIM_CLUSTER_SIZE : 1;
constexpr int kReading = NPUSIM_READING;     // warps of a block that read slices
constexpr int kReaders = kRanks * kReading;  // of a cluster, which share its slices
constexpr int kAlone = 2;  // slices of a warp up to which a cluster is faster than several

constexpr int kKBytes = kWarpKeys * kDLine, kSlice = kWarpKeys * (kDLine + kVLine);
constexpr int kPairs = kGroup * kV / 2;                   // of neighbours in y
constexpr int kShare = (kPairs + kRanks - 1) / kRanks;    // of them, that a block adds up
constexpr int kInbox = 16 * kDLine;                       // behind the queries: all warps' sums
constexpr int kWeights = kInbox + kReaders * kShare * 8;  // and their tops and totals
constexpr int kSlices = (kWeights + kReaders * kGroup * 8 + 15) / 16 * 16;  // where slices begin
static_assert(kReading <= kWarps && kSlices + kReading * kStages * kSlice <= NPUSIM_SHARED);

extern __shared__ __align__(128) unsigned char shared_memory[];

// Blocks that have added up their share of a head's sums, of all clusters.
unsigned arrived[params.batch * params.kv_heads][kRanks];

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

// Rows of a slice that lie in the cache: all, or `count` of them, where row `count` is left out and
// those behind it are zero.
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

// A warp's share of one key/value head of one batch item: of as many slices as there are warps one,
// the last first. The new key and value are in the first slice of the warp that has them.
struct Step {
  using A = Storage<params.cs_dtype>;
  int64_t batch, kv_head, position;
  bool fits;
  int64_t begin;          // the first key that is seen
  int cluster, clusters;  // this one, and those that share the keys
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
    clusters =
        slices <= kAlone * kReaders ? 1 : smaller<int>(kClusters, ceil_div(slices, kReaders));
    rank = static_cast<int>(blockIdx.x) % NPUSIM_CLUSTER_SIZE;
    reader = static_cast<int>(threadIdx.x) / 32 * kRanks + rank;
    const int first = cluster * kReaders + reader, all = clusters * kReaders;
    const bool reads = static_cast<int>(threadIdx.x) / 32 < kReading;
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
  // Bytes that each of them sends this block: its pairs of y, and the heads' tops and totals.
  int mail() const { return 8 * (kGroup + larger(0, smaller(kShare, kPairs - rank * kShare))); }
  // Where the slice of a warp's turn begins.
  int64_t key(int turn) const {
    const int64_t round = static_cast<int64_t>(turns - 1 - turn) * clusters + cluster;
    return begin + (round * kReaders + reader) * kWarpKeys;
  }
  static unsigned slot(unsigned shared, int warp, int turn) {
    return shared + kSlices + (warp * kStages + turn % kStages) * kSlice;
  }

  // Asks for the slice of a turn. Of the first one, rows may be missing.
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

  // Has the slices behind the first ones brought to the second cache.
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
  // memory, and to the caches. All is asked for before the first of it is used.
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
inline void attend(const Step& step, unsigned shared, RowsOfWarp<kHalves>& rows) {
  const int lane = threadIdx.x % 32;
  const Queries queries{shared, {}};
#pragma unroll 1
  for (int turn = 0; turn < step.turns; ++turn) {
    cp_async_wait<kStages - 1>();
    __syncwarp();
    const unsigned at = Step::slot(shared, threadIdx.x / 32, turn);
    float scores[kWarpKeys / 8][4];
    queries.dot(at, 0, scores);
    const int64_t behind = step.position - step.key(turn);  // the last key that is seen
    const int last = static_cast<int>(smaller<int64_t>(behind, kWarpKeys)) - lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kWarpKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool sees = j * 8 + e % 2 <= last;
        scores[j][e] = sees ? scaled(scores[j][e]) : kNothing;
      }
    }
    rows.weigh(scores);
    rows.add_values(scores, at + kKBytes, 0);
    __syncwarp();
    step.fill<true>(shared, turn + kStages);
  }
  cp_async_wait<0>();
}

// Two floats to `at` in the shared memory of the cluster's block `rank`.
inline void push(unsigned at, unsigned mailbox, int rank, float first, float second) {
  if constexpr (kRanks > 1) {
    exchange_store(map_shared_rank(at, rank), map_shared_rank(mailbox, rank), first, second);
  } else {
    store_shared(at, first, second);
  }
}

// Sends each block its share of this warp's sums, and every block the tops and totals.
inline void send_sums(const Step& step, const RowsOfWarp<kHalves>& rows, unsigned shared,
                      unsigned mailbox) {
  const int lane = threadIdx.x % 32;
  const unsigned inbox = shared + kInbox + step.reader * kShare * 8;
  const unsigned weights = shared + kWeights + step.reader * kGroup * 8;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = lane / 4 + half * 8;
    float total = rows.total[half];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (row >= kGroup) continue;
#pragma unroll
    for (int rank = 0; rank < kRanks; rank += 4) {
      if (rank + lane % 4 >= kRanks) continue;
      push(weights + row * 8, mailbox, rank + lane % 4, rows.top[half], total);
    }
#pragma unroll
    for (int j = 0; j < kVBlocks; ++j) {
      const int pair = row * (kV / 2) + j * 4 + lane % 4;
      push(inbox + pair % kShare * 8, mailbox, pair / kShare, rows.sums[j][half * 2],
           rows.sums[j][half * 2 + 1]);
    }
  }
}

// Sums of a pair of y, which count under a top score; 16 bytes of scratch memory.
struct alignas(16) Partial {
  float top, total, first, second;
};

inline void store_pair(const Step& step, int pair, const Partial& sums, T* y) {
  const int64_t head = step.kv_head * kGroup + pair * 2 / kV;
  T* to = y + step.batch * params.y_strides[0] + head * params.y_strides[1] + pair * 2 % kV;
  const bool any = sums.total > 0.0f;
  to[0] = encode<T>(any ? sums.first / sums.total : 0.0f);
  to[1] = encode<T>(any ? sums.second / sums.total : 0.0f);
}

// Adds up what all warps have sent of this block's share of y, four threads a pair, and stores it,
// or leaves it in scratch memory.
inline void store_share(const Step& step, const unsigned char* memory, T* y, Partial* partials) {
  const float* inbox = reinterpret_cast<const float*>(memory + kInbox);
  const float* weights = reinterpret_cast<const float*>(memory + kWeights);
  const int part = threadIdx.x % 4, count = step.readers();
#pragma unroll 1
  for (int n = 0; n < (kShare * 4 + kThreads - 1) / kThreads; ++n) {
    const int i = (n * kThreads + static_cast<int>(threadIdx.x)) / 4;
    const int pair = step.rank * kShare + i;
    const bool exists = i < kShare && pair < kPairs;
    const int row = exists ? pair * 2 / kV : 0, at = exists ? i : 0;
    Partial sums{kNothing, 0.0f, 0.0f, 0.0f};
    for (int r = part; r < count; r += 4) {
      sums.top = fmaxf(sums.top, weights[(r * kGroup + row) * 2]);
    }
    sums.top = fmaxf(sums.top, __shfl_xor_sync(0xffffffffu, sums.top, 1));
    sums.top = fmaxf(sums.top, __shfl_xor_sync(0xffffffffu, sums.top, 2));
    for (int r = part; r < count; r += 4) {
      const float* weight = weights + (r * kGroup + row) * 2;
      const float share = shrink(weight[0], sums.top);
      sums.total += share * weight[1];
      sums.first += share * inbox[(r * kShare + at) * 2];
      sums.second += share * inbox[(r * kShare + at) * 2 + 1];
    }
#pragma unroll
    for (int far = 1; far < 4; far *= 2) {
      sums.total += __shfl_xor_sync(0xffffffffu, sums.total, far);
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

// Adds up what the clusters have left of this block's share of y.
inline void store_total(const Step& step, const Partial* partials, T* y) {
  const int end = smaller(kPairs, (step.rank + 1) * kShare);
  for (int pair = step.rank * kShare + threadIdx.x; pair < end; pair += kThreads) {
    Partial parts[kClusters], sums{kNothing, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < kClusters; ++c) {
      if (c < step.clusters) parts[c] = partials[c * kPairs + pair];
    }
#pragma unroll
    for (int c = 0; c < kClusters; ++c) {
      if (c < step.clusters) sums.top = fmaxf(sums.top, parts[c].top);
    }
#pragma unroll
    for (int c = 0; c < kClusters; ++c) {
      if (c >= step.clusters) continue;
      const float share = shrink(parts[c].top, sums.top);
      sums.total += share * parts[c].total;
      sums.first += share * parts[c].first;
      sums.second += share * parts[c].second;
    }
    store_pair(step, pair, sums, y);
  }
}

inline void run(void* const* operands) {
  if constexpr (!kCacheUnwritten) wait_on_dependencies();
  if (static_cast<int>(blockIdx.x) % NPUSIM_CLUSTER_SIZE >= kRanks) return;  // of no cluster
  const Step step(operands);
  if (!step.takes_part()) return;
  __shared__ unsigned long long barrier;
  const unsigned shared = shared_address(shared_memory);
  const unsigned mailbox = kRanks > 1 ? shared_address(&barrier) : 0;
  if (threadIdx.x == 0) init_exchange(mailbox);
  exchange_arrive();
  step.fill<false>(shared, 0);
#pragma unroll 1
  for (int i = 1; i < kStages; ++i) step.fill<true>(shared, i);
  if constexpr (kCacheUnwritten) step.fetch_ahead();
  cluster_wait();
  if (threadIdx.x == 0) expect_exchange(mailbox, step.readers() * step.mail());
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
      RowsOfWarp<kHalves> rows;
      attend(step, shared, rows);
      send_sums(step, rows, shared, mailbox);
    }
  }
  if constexpr (kRanks > 1) {
    wait_exchange(mailbox);
  } else {
    __syncthreads();
  }
  T* y = static_cast<T*>(operands[kY]);
  Partial* partials = static_cast<Partial*>(operands[kScratch]) + blockIdx.y * kClusters * kPairs;
  store_share(step, shared_memory, y, partials);
  if (step.clusters > 1 && arrives_last(arrived[blockIdx.y][step.rank], step.clusters)) {
    store_total(step, partials, y);
  }
}

// Blocks that a processor should hold. Code for newer devices takes over 170 registers, and would
// keep some in memory to make room for a second block.
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
