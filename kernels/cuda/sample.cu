// One step of generating: the newest token goes into the history, the next one is drawn from the
// scores as kernels/shared/sampling.h says. NPUSIM_RANKS blocks, a cluster, share the tokens, a
// stretch for each warp, and put what they find together in scratch memory. Bounds are found by
// histograms over the digits of keys, places by sums in the order of tokens: nothing is sorted.
// Where there are no clusters, the first block does it alone.
#include "kernels/cuda/block.h"
#include "kernels/cuda/mma_cluster.h"
#include "kernels/shared/sampling.h"

namespace npusim {

using T = Storage<params.dtype>;
using sampling::Options;

constexpr int kRanks = kHasClusters ? NPUSIM_RANKS : 1;
constexpr int kThreads = NPUSIM_BLOCK, kWarps = kThreads / 32;
constexpr int64_t kSize = params.size;
// Of a warp, in rounds of one token a lane.
constexpr int64_t kRounds = (kSize + int64_t{kRanks} * kThreads - 1) / (int64_t{kRanks} * kThreads);
constexpr int kDigits = 2048;
constexpr int64_t kTile = 65535 / kThreads;  // rounds until a block's sums could wrap

struct Histogram {
  uint64_t sums[kDigits];
};
// What blocks tell each other.
struct Exchange {
  uint64_t best[NPUSIM_RANKS];
  uint64_t sums[2][NPUSIM_RANKS];
  int64_t last;
  Histogram histograms[6];
};
static_assert(sizeof(Exchange) <= NPUSIM_EXCHANGE);

inline void meet() {
  if constexpr (kRanks > 1) {
    arrive_in_cluster();
    wait_for_cluster();
  } else {
    __syncthreads();
  }
}

template <typename V>
inline V seen(const V& value) {
  return *const_cast<const volatile V*>(&value);
}

struct Higher {
  uint64_t operator()(uint64_t a, uint64_t b) const { return b > a ? b : a; }
};

// Sums of the lanes up to each.
inline uint64_t scan_warp(uint64_t x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t left = __shfl_up_sync(0xffffffffU, x, step);
    if (lane >= step) x += left;
  }
  return x;
}

// The tokens of a warp, and the keys of their scores, which it keeps in scratch memory.
class Stretch {
 public:
  Stretch(const T* logits, uint32_t* keys, int rank)
      : logits_(logits),
        keys_(keys),
        lane_(threadIdx.x % 32),
        first_((static_cast<int64_t>(rank) * kWarps + threadIdx.x / 32) * kRounds * 32) {}

  // f(token, key) for this lane's tokens, from the scores, or from what was kept of them.
  template <typename F>
  void from_scores(F f) const {
#pragma unroll 8
    for (int64_t round = 0; round < kRounds; ++round) {
      const int64_t token = first_ + round * 32 + lane_;
      if (token < kSize) f(token, sampling::key_of(decode<float>(logits_[token])));
    }
  }
  template <typename F>
  void from_keys(F f) const {
#pragma unroll 8
    for (int64_t round = 0; round < kRounds; ++round) {
      const int64_t token = first_ + round * 32 + lane_;
      if (token < kSize) f(token, keys_[token]);
    }
  }
  void keep(int64_t token, uint32_t key) const { keys_[token] = key; }

  // Keys of the block's tokens that were said, after the penalty.
  void penalise(const int64_t* history, int64_t length, int64_t newest, float penalty,
                int rank) const {
    constexpr int64_t kBlockTokens = kWarps * kRounds * 32;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < length; i += kThreads) {
      const int64_t token = i == length - 1 ? newest : history[i];
      if (token < 0 || token >= kSize || token / kBlockTokens != rank) continue;
      keep(token, sampling::key_of(sampling::penalised(decode<float>(logits_[token]), penalty)));
    }
    __syncthreads();
  }

  int lane() const { return lane_; }
  // The first token of this warp in a round, and its lane's key; 0 where there is none.
  int64_t first(int64_t round) const { return first_ + round * 32; }
  uint32_t key(int64_t round) const {
    const int64_t token = first(round) + lane_;
    return token < kSize ? keys_[token] : 0;
  }

 private:
  const T* logits_;
  uint32_t* keys_;
  int lane_;
  int64_t first_;
};

// Of tokens in the order of their keys, the key at which a sum from the highest on reaches what was
// wanted: the sum over all higher keys, and over those that have it.
struct Bound {
  uint32_t key;
  uint64_t above, at;
};

// The digit of a histogram in which the sum reaches what is wanted, for all threads.
inline Bound find_digit(const Histogram& histogram, uint32_t digits, uint64_t above,
                        uint64_t wanted) {
  __shared__ uint64_t warps[kWarps];
  __shared__ Bound found;
  constexpr int kEach = kDigits / kThreads;
  const int lane = threadIdx.x % 32;
  uint64_t each[kEach], mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t down = threadIdx.x * kEach + i;
    each[i] = down < digits ? seen(histogram.sums[digits - 1 - down]) : 0;
    mine += each[i];
  }
  const uint64_t scanned = scan_warp(mine, lane);
  __syncthreads();
  if (lane == 31) warps[threadIdx.x / 32] = scanned;
  if (threadIdx.x == 0) found = {0, above, 0};
  __syncthreads();
  uint64_t before = above + scanned - mine;
  for (int w = 0; w < static_cast<int>(threadIdx.x) / 32; ++w) before += warps[w];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (before < wanted && before + each[i] >= wanted) {
      found = {digits - 1 - (threadIdx.x * kEach + i), before, each[i]};
    }
    before += each[i];
  }
  __syncthreads();
  return found;
}

inline uint64_t total_of(const Histogram& histogram) {
  uint64_t mine = 0;
  for (int i = threadIdx.x; i < kDigits; i += kThreads) mine += seen(histogram.sums[i]);
  return fold_lanes<kThreads>(mine, Plus{});
}

// Adds the block's sums, in two halves of 16 bits, to the cluster's.
inline void flush(uint32_t (&halves)[2][kDigits], Histogram& to) {
  __syncthreads();
  for (int i = threadIdx.x; i < kDigits; i += kThreads) {
    const uint64_t sum = halves[0][i] + (static_cast<uint64_t>(halves[1][i]) << 16);
    if (sum > 0) atomicAdd(&to.sums[i], sum);
    halves[0][i] = halves[1][i] = 0;
  }
  __syncthreads();
}

// The bound of `measure(key)` over keys of at least `least`. `wanted(sum of all)` is at least 1 and
// at most that sum, or 0: then there is no bound, and the result is `least`. Keys without a penalty
// are those of 16 bits where the scores are.
template <typename Measure, typename Wanted>
inline Bound find_bound(const Stretch& tokens, Histogram* histograms, uint32_t least, bool plain,
                        Measure measure, Wanted wanted_of) {
  __shared__ uint32_t halves[2][kDigits];
  constexpr int kShifts[] = {21, 10, 0};
  Bound bound{0, 0, 0};
  uint64_t wanted = 0;
  int end = 32;
  for (int i = threadIdx.x; i < kDigits; i += kThreads) halves[0][i] = halves[1][i] = 0;
  __syncthreads();
  for (int pass = 0; pass < 3; ++pass) {
    if (pass == 2 && plain) {
      bound.key = bound.key << 10 | (bound.key >> 21 ? 0 : 1023);
      return bound;
    }
    const int shift = kShifts[pass];
    const uint32_t digits = 1u << (end - shift);
    for (int64_t round = 0; round < kRounds; ++round) {
      const uint64_t key = tokens.key(round);
      if (key >= least && key >> end == bound.key) {
        const uint64_t amount = measure(static_cast<uint32_t>(key));
        const auto digit = static_cast<uint32_t>(key >> shift) & (digits - 1);
        if (amount & 0xffff) atomicAdd(&halves[0][digit], static_cast<uint32_t>(amount & 0xffff));
        if (amount >> 16) atomicAdd(&halves[1][digit], static_cast<uint32_t>(amount >> 16));
      }
      if (round % kTile == kTile - 1) flush(halves, histograms[pass]);
    }
    flush(halves, histograms[pass]);
    meet();
    if (pass == 0) {
      wanted = wanted_of(total_of(histograms[0]));
      if (wanted == 0) return {least, 0, 0};
    }
    const Bound digit = find_digit(histograms[pass], digits, bound.above, wanted);
    bound = {bound.key << (end - shift) | digit.key, digit.above, digit.at};
    end = shift;
  }
  return bound;
}

// Calls found(token) on the lane of the first token, in their order, at which the sum of
// `measure(token, key)` exceeds a target, which target(sum of all) tells.
template <typename Measure, typename Target, typename Found>
inline void locate(const Stretch& tokens, uint64_t* sums, int rank, Measure measure, Target target,
                   Found found) {
  __shared__ uint64_t warps[kWarps];
  uint64_t mine = 0;
  tokens.from_keys([&](int64_t token, uint32_t key) { mine += measure(token, key); });
  mine = fold_warp(mine, Plus{});
  __syncthreads();
  if (tokens.lane() == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  uint64_t before = 0, block = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == static_cast<int>(threadIdx.x) / 32) before = block;
    block += warps[w];
  }
  if (threadIdx.x == 0) *const_cast<volatile uint64_t*>(&sums[rank]) = block;
  meet();
  for (int r = 0; r < kRanks; ++r) {
    if (r == rank) before += all;
    all += seen(sums[r]);
  }
  const uint64_t wanted = target(all);
  if (wanted < before || wanted - before >= mine) return;
  for (int64_t round = 0; round < kRounds; ++round) {
    const int64_t token = tokens.first(round) + tokens.lane();
    const uint64_t own = token < kSize ? measure(token, tokens.key(round)) : 0;
    const uint64_t upto = before + scan_warp(own, tokens.lane());
    if (upto > wanted && upto - own <= wanted) found(token);
    before = __shfl_xor_sync(0xffffffffU, upto, 31 ^ tokens.lane());
  }
}

// The tokens that options leave: keys above the bound, and of those that have it the ones up to
// `last`; weights below `least` count nothing.
struct Kept {
  uint32_t key, highest;
  int64_t last;
  uint64_t least;
  float scale;

  uint64_t operator()(int64_t token, uint32_t candidate) const {
    if (candidate < key || (candidate == key && token > last)) return 0;
    const uint64_t weight = sampling::weight_of_key(candidate, highest, scale);
    return weight < least ? 0 : weight;
  }
};

inline Kept select(const Stretch& tokens, Exchange& exchange, const Options& options,
                   uint32_t highest, bool plain, int rank) {
  const float scale = sampling::halvings(options.temperature);
  Kept kept{sampling::kNoKey + 1, highest, kSize, sampling::least_weight(options), scale};
  const auto k = static_cast<uint64_t>(sampling::kept_count(options, kSize));
  if (k > 0) {
    kept.key =
        find_bound(
            tokens, exchange.histograms, kept.key, plain, [](uint32_t) -> uint64_t { return 1; },
            [&](uint64_t count) { return k < count ? k : 0; })
            .key;
  }
  if (!(options.top_p < 1)) return kept;
  uint64_t wanted = 0;
  const auto weigh = [&](uint32_t key) { return sampling::weight_of_key(key, highest, scale); };
  const Bound bound =
      find_bound(tokens, exchange.histograms + 3, kept.key, plain, weigh,
                 [&](uint64_t total) { return wanted = sampling::nucleus(options, total); });
  kept.key = bound.key;
  if (bound.above + bound.at <= wanted) return kept;  // no fewer than all that have the bound
  const uint64_t each = weigh(bound.key), equals = (wanted - bound.above + each - 1) / each;
  locate(
      tokens, exchange.sums[0], rank,
      [&](int64_t, uint32_t key) -> uint64_t { return key == bound.key; },
      [&](uint64_t) { return equals - 1; },
      [&](int64_t token) { *const_cast<volatile int64_t*>(&exchange.last) = token; });
  meet();
  kept.last = seen(exchange.last);
  return kept;
}

// The operands that are written.
struct Result {
  int64_t *token, *row, *chosen;

  void put(int64_t newest, int64_t next) const {
    *row = newest;
    *token = next < 0 ? 0 : next;
    *chosen = next;
  }
};

inline void sample(const T* logits, const Options& options, uint64_t bits, int64_t length,
                   const int64_t* history, const Result& result, uint32_t* keys,
                   Exchange& exchange) {
  const int rank = blockIdx.x;
  const Stretch tokens(logits, keys, rank);
  const int64_t newest = *result.token;
  const bool draws = options.temperature > 0, penalises = options.repetition_penalty != 1.0;
  uint64_t best = 0;
  const auto compare = [&](int64_t token, uint32_t key) {
    const uint64_t order = static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(~token);
    best = order > best ? order : best;
  };
  tokens.from_scores([&](int64_t token, uint32_t key) {
    if (draws || penalises) tokens.keep(token, key);
    compare(token, key);
  });
  if (draws) {
    auto* sums = exchange.histograms[0].sums;
    for (int i = rank * kThreads + threadIdx.x; i < 6 * kDigits; i += kRanks * kThreads)
      sums[i] = 0;
  }
  if (penalises) {
    const auto penalty = static_cast<float>(options.repetition_penalty);
    tokens.penalise(history, length, newest, penalty, rank);
    best = 0;
    tokens.from_keys(compare);
  }
  best = fold_lanes<kThreads>(best, Higher{});
  if (threadIdx.x == 0) *const_cast<volatile uint64_t*>(&exchange.best[rank]) = best;
  meet();
  for (int r = 0; r < kRanks; ++r) best = Higher{}(best, seen(exchange.best[r]));
  const auto highest = static_cast<uint32_t>(best >> 32);
  if (!draws || highest <= sampling::kNoKey) {
    const int64_t first = static_cast<uint32_t>(~best);
    if (rank == 0 && threadIdx.x == 0) result.put(newest, highest > sampling::kNoKey ? first : -1);
    return;
  }
  const bool plain = sizeof(T) == 2 && !penalises;
  const Kept kept = select(tokens, exchange, options, highest, plain, rank);
  locate(
      tokens, exchange.sums[1], rank, kept,
      [&](uint64_t total) { return sampling::drawn(bits, total); },
      [&](int64_t token) { result.put(newest, token); });
}

}  // namespace npusim

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define NPUSIM_CLUSTER __cluster_dims__(NPUSIM_RANKS, 1, 1)
#else
#define NPUSIM_CLUSTER
#endif
extern "C" __global__ void NPUSIM_CLUSTER __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* logits, const void* options, const void* seed, const void* length,
                  void* token, void* history, void* chosen, void* scratch,
                  npusim::Failure* failure) {
  using namespace npusim;
  if (blockIdx.x >= kRanks) return;
  const int64_t count = *static_cast<const int64_t*>(length);
  if (count < 1 || count > params.capacity) {
    if (threadIdx.x == 0) report(failure, kOutOfRange, count, params.capacity);
    return;
  }
  auto* rows = static_cast<int64_t*>(history);
  const Result result{static_cast<int64_t*>(token), rows + count - 1,
                      static_cast<int64_t*>(chosen)};
  const uint64_t state =
      *static_cast<const uint64_t*>(seed) + static_cast<uint64_t>(count) * sampling::kStep;
  auto* exchange = static_cast<Exchange*>(scratch);
  sample(static_cast<const T*>(logits), *static_cast<const Options*>(options),
         sampling::mixed(state), count, rows, result, reinterpret_cast<uint32_t*>(exchange + 1),
         *exchange);
}
