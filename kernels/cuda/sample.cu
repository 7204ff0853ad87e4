// One step of generating: the newest token goes into the history, the next one is drawn from the
// scores as kernels/shared/sampling.h says. NPUSIM_RANKS blocks, a cluster, share the tokens, a
// stretch for each warp, and put what they find together in scratch memory. Bounds are found by
// histograms, first over weights in parts of halvings, then over keys within one such part; places
// by sums in the order of tokens: nothing is sorted. Where there are no clusters, the first block
// does it alone.
#include "kernels/cuda/block.h"
#include "kernels/cuda/mma_cluster.h"
#include "kernels/shared/sampling.h"

namespace npusim {

using T = Storage<params.dtype>;
using sampling::Options;

constexpr int kRanks = kHasClusters ? NPUSIM_RANKS : 1;
constexpr int kThreads = NPUSIM_BLOCK, kWarps = kThreads / 32;
constexpr int64_t kSize = params.size;
constexpr int kPack = kSize % 4 == 0 ? 4 : 1;  // tokens of a lane that lie together
constexpr int64_t kAtOnce = int64_t{kRanks} * kThreads * kPack;
constexpr int64_t kRounds = (kSize + kAtOnce - 1) / kAtOnce;
constexpr int kFlight = kRounds < 5 ? kRounds : 5;  // rounds whose loads are under way
constexpr int kDigits = kThreads;
constexpr int64_t kTile = 65535 / (kThreads * kPack);  // rounds until a block's sums could wrap
constexpr int kDigitBits = 10, kParts = 32;            // of a halving
static_assert(kDigits == 1 << kDigitBits && kDigits == 32 * kParts && kWarps == 32);
// Bits that no key of a score without a penalty differs in.
constexpr int kPlainBits = sizeof(T) == 2 ? 13 : 0;

using Numbers = Pack<uint32_t, kPack>;

struct Sums {
  uint64_t count, weight;

  Sums operator+(const Sums& other) const { return {count + other.count, weight + other.weight}; }
};

struct Histogram {
  Sums at[kDigits];
};

// What blocks tell each other.
struct Exchange {
  uint64_t best[NPUSIM_RANKS];
  Sums sums[NPUSIM_RANKS];
  Histogram weights;
  Histogram keys[2][4];  // of top-k and of top-p
};
static_assert(sizeof(Exchange) <= NPUSIM_EXCHANGE && sizeof(Exchange) % 16 == 0);

inline void meet() {
  if constexpr (kRanks > 1) {
    arrive_in_cluster();
    wait_for_cluster();
  } else {
    __syncthreads();
  }
}

inline uint64_t seen(const uint64_t& value) {
  return *const_cast<const volatile uint64_t*>(&value);
}
inline Sums seen(const Sums& value) {
  return {seen(value.count), seen(value.weight)};
}
inline void show(uint64_t& at, uint64_t value) {
  *const_cast<volatile uint64_t*>(&at) = value;
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
inline Sums scan_warp(const Sums& x, int lane) {
  return {scan_warp(x.count, lane), scan_warp(x.weight, lane)};
}
inline Sums fold_sums(const Sums& x) {
  return {fold_warp(x.count, Plus{}), fold_warp(x.weight, Plus{})};
}

// Weights in 32 bits: those of the highest score are the only ones that need 33.
constexpr uint32_t kWhole = 0xffffffffU;
inline uint32_t packed(uint64_t weight) {
  return weight > kWhole ? kWhole : static_cast<uint32_t>(weight);
}
inline uint64_t unpacked(uint32_t weight) {
  return weight == kWhole ? sampling::kOne : weight;
}
// The part of a halving that a weight lies in, a higher one for higher weights.
inline int part_of(uint32_t weight) {
  const auto bits = __builtin_bit_cast(uint32_t, static_cast<float>(weight));
  const int part = static_cast<int>(bits >> 18) - (127 << 5);
  return part < kDigits ? part : kDigits - 1;
}

// The tokens of a warp, and what it keeps of them in scratch memory: the keys of their scores, and
// their weights.
class Stretch {
 public:
  Stretch(const T* logits, uint32_t* keys, int rank)
      : logits_(logits),
        keys_(keys),
        weights_(keys + (kSize + 3) / 4 * 4),
        lane_(threadIdx.x % 32),
        first_((static_cast<int64_t>(rank) * kWarps + threadIdx.x / 32) * kRounds * 32 * kPack) {}

  // f(first token, keys) for this lane's tokens, from their scores.
  template <typename F>
  void from_scores(F f) const {
    const bool whole = is_packed<kPack>(logits_);
    for (int64_t begin = 0; begin < kRounds; begin += kFlight) {
      Pack<T, kPack> scores[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        if (!exists(begin + i)) continue;
        const T* at = logits_ + token(begin + i);
        if (whole) {
          scores[i] = load_pack<kPack>(at);
        } else {
#pragma unroll
          for (int e = 0; e < kPack; ++e) scores[i].at[e] = at[e];
        }
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        if (!exists(begin + i)) continue;
        Numbers keys;
#pragma unroll
        for (int e = 0; e < kPack; ++e) {
          keys.at[e] = sampling::key_of(decode<float>(scores[i].at[e]));
        }
        f(token(begin + i), keys);
      }
    }
  }
  // The same from the keys, of rounds from `begin` on, one after the other.
  template <typename F>
  void from_keys(int64_t begin, int64_t end, F f) const {
#pragma unroll 1
    for (int64_t round = begin; round < end && exists(round); ++round) {
      f(token(round), keys(round));
    }
  }

  void keep_keys(int64_t token, const Numbers& keys) const { store_pack(keys_ + token, keys); }
  void keep_weights(int64_t token, const Numbers& weights) const {
    store_pack(weights_ + token, weights);
  }

  // Keys of the block's tokens that were said, after the penalty.
  void penalise(const int64_t* history, int64_t length, int64_t newest, float penalty,
                int rank) const {
    constexpr int64_t kBlockTokens = kThreads * kRounds * kPack;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < length; i += kThreads) {
      const int64_t token = i == length - 1 ? newest : history[i];
      if (token < 0 || token >= kSize || token / kBlockTokens != rank) continue;
      keys_[token] = sampling::key_of(sampling::penalised(decode<float>(logits_[token]), penalty));
    }
    __syncthreads();
  }

  int lane() const { return lane_; }
  // The first of a lane's tokens in a round, which is one of those that exist.
  int64_t token(int64_t round) const { return first_ + (round * 32 + lane_) * kPack; }
  bool exists(int64_t round) const { return round < kRounds && token(round) < kSize; }
  Numbers keys(int64_t round) const { return load_pack<kPack>(keys_ + token(round)); }
  Numbers weights(int64_t round) const { return load_pack<kPack>(weights_ + token(round)); }

 private:
  const T* logits_;
  uint32_t* keys_;
  uint32_t* weights_;
  int lane_;
  int64_t first_;
};

// A block's histogram: counts, and weights in two halves of 16 bits.
struct Gathered {
  uint32_t counts[kDigits], halves[2][kDigits];

  void clear() {
    counts[threadIdx.x] = halves[0][threadIdx.x] = halves[1][threadIdx.x] = 0;
    __syncthreads();
  }
  void add(int digit, uint64_t weight, bool counted, bool weighed) {
    if (counted) atomicAdd(&counts[digit], 1u);
    if (!weighed) return;
    atomicAdd(&halves[0][digit], static_cast<uint32_t>(weight & 0xffff));
    atomicAdd(&halves[1][digit], static_cast<uint32_t>(weight >> 16));
  }
  // Adds the block's sums to the cluster's, and clears them.
  void flush(Histogram& to) {
    __syncthreads();
    const int i = threadIdx.x;
    const uint64_t weight = halves[0][i] + (static_cast<uint64_t>(halves[1][i]) << 16);
    if (counts[i] > 0) atomicAdd(&to.at[i].count, uint64_t{counts[i]});
    if (weight > 0) atomicAdd(&to.at[i].weight, weight);
    clear();
  }
};

// Of tokens in the order of their keys, where a sum from the highest on reaches what was wanted:
// the digit or the key there, the sums over all that are higher, and over those that have it.
struct Bound {
  uint32_t digit;
  Sums above, at;
};

// The digit of a histogram in which the sum, of counts or of weights, reaches what
// wanted(sums of all) tells; for all threads. Where that is 0, no digit: sums at it are 0.
template <typename Wanted>
inline Bound find_digit(const Histogram& histogram, const Sums& above, bool counts,
                        Wanted wanted_of) {
  __shared__ Sums warps[kWarps];
  __shared__ Bound found;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t digit = kDigits - 1 - threadIdx.x;
  const Sums own = seen(histogram.at[digit]);
  const Sums scanned = scan_warp(own, lane);
  __syncthreads();  // what an earlier search left has been read
  if (lane == 31) warps[warp] = scanned;
  if (threadIdx.x == 0) found = {0, above, {0, 0}};
  __syncthreads();
  const Sums whole = warps[lane];
  const uint64_t wanted = wanted_of(fold_sums(whole));
  const Sums left = fold_sums(lane < warp ? whole : Sums{0, 0}), upto = above + left + scanned;
  const Sums before{upto.count - own.count, upto.weight - own.weight};
  const bool here = counts ? before.count < wanted && upto.count >= wanted
                           : before.weight < wanted && upto.weight >= wanted;
  if (here) found = {digit, before, own};
  __syncthreads();
  return found;
}

// What keys and weights are relative to.
struct Scale {
  uint32_t highest;  // key
  float scale;

  uint64_t weight(uint32_t key) const { return sampling::weight_of_key(key, highest, scale); }
  // Keys between which those of all weights of a part lie. Weights are rounded down, and the
  // logarithm of 1 + x lies between x and x + 0.0861.
  void range(uint32_t part, uint32_t& least, uint32_t& most) const {
    const float top = sampling::score_of(highest), slack = top < 0 ? top * -1e-6f : top * 1e-6f;
    const uint32_t octave = part / kParts;
    const float octaves = 32.0f - static_cast<float>(octave);
    const float x = static_cast<float>(part % kParts) / kParts, halving = 16777216.0f / scale;
    const float rest = 1.0f / kParts + 1.0f / static_cast<float>(1u << octave) + 0.0862f;
    const float far = (octaves - x) * halving * 1.00001f + slack;
    const float near = (octaves - x - rest) * halving * 0.99999f - slack;
    least = sampling::key_of(top - far);
    most = sampling::key_of(top - near);
    if (least <= sampling::kNoKey) least = sampling::kNoKey + 1;
    if (most > highest || most < least || !(near > 0)) most = highest;
  }
};

// The key in a part of the weights at which a sum reaches what is wanted, which is in that part.
// Keys of scores without a penalty differ in their high bits alone where scores have 16.
inline Bound find_key(const Stretch& tokens, Gathered& gathered, Histogram* histograms,
                      const Scale& scale, Bound part, uint32_t lowest, bool plain, bool counts,
                      uint64_t wanted) {
  const int unit = plain ? kPlainBits : 0;
  uint32_t least, most;
  scale.range(part.digit, least, most);
  least = (least > lowest ? least : lowest) >> unit, most >>= unit;
  Bound bound = part;
#pragma unroll 1
  for (bool first = true; first || least < most; first = false) {
    const uint32_t span = most - least;
    int shift = 0;
    while (span >> shift >= kDigits) ++shift;
    for (int64_t begin = 0; begin < kRounds; begin += kTile) {
      const int64_t end = begin + kTile < kRounds ? begin + kTile : kRounds;
      tokens.from_keys(begin, end, [&](int64_t, const Numbers& keys) {
#pragma unroll 1
        for (int e = 0; e < kPack; ++e) {
          const uint32_t key = keys.at[e], off = (key >> unit) - least;
          if (off > span || key < lowest) continue;
          const uint32_t weight = packed(scale.weight(key));
          if (weight == 0 || part_of(weight) != static_cast<int>(part.digit)) continue;
          gathered.add(off >> shift, unpacked(weight), true, true);
        }
      });
      gathered.flush(*histograms);
    }
    meet();
    bound = find_digit(*histograms++, bound.above, counts, [&](const Sums&) { return wanted; });
    least += bound.digit << shift;
    const uint32_t end = least + ((1u << shift) - 1);
    most = end < most ? end : most;
  }
  const uint32_t low = unit > 0 && !(least >> (31 - unit)) ? (1u << unit) - 1 : 0;
  bound.digit = least << unit | low;
  return bound;
}

// The tokens that options leave: keys above the bound, and of those that have it so many; weights
// below `least` count nothing.
struct Kept {
  uint32_t key;
  uint64_t equals, each, least;

  uint64_t above(uint32_t candidate, uint64_t weight) const {
    return candidate > key && weight >= least ? weight : 0;
  }
  // Of the first ones that have the bound.
  uint64_t tied(uint64_t count) const { return each * (count < equals ? count : equals); }
};

// Keeps the weights of all tokens, and finds what top-k and top-p leave of them.
inline Kept select(const Stretch& tokens, Exchange& exchange, const Options& options,
                   const Scale& scale, bool plain) {
  __shared__ Gathered gathered;
  const auto k = static_cast<uint64_t>(sampling::kept_count(options, kSize));
  const bool few = k > 0, nucleus = options.top_p < 1;
  Kept kept{sampling::kNoKey, 0, 0, sampling::least_weight(options)};
  if (few || nucleus) gathered.clear();
  for (int64_t begin = 0; begin < kRounds; begin += kTile) {
    const int64_t end = begin + kTile < kRounds ? begin + kTile : kRounds;
    tokens.from_keys(begin, end, [&](int64_t token, const Numbers& keys) {
      Numbers weights;
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const uint64_t weight = scale.weight(keys.at[e]);
        weights.at[e] = packed(weight);
        if ((few || nucleus) && weight > 0) {
          gathered.add(part_of(weights.at[e]), weight, few, nucleus);
        }
      }
      tokens.keep_weights(token, weights);
    });
    if (few || nucleus) gathered.flush(exchange.weights);
  }
  if (!few && !nucleus) return kept;
  meet();
  Sums all{0, 0};
  uint32_t lowest = sampling::kNoKey + 1;
  const Bound in = find_digit(exchange.weights, {0, 0}, true, [&](const Sums& total) {
    all = total;
    return few && k < total.count ? k : 0;
  });
  if (in.at.count > 0) {
    const Bound bound =
        find_key(tokens, gathered, exchange.keys[0], scale, in, lowest, plain, true, k);
    lowest = bound.digit;
    all = bound.above + bound.at;
    kept.key = lowest - 1;
  }
  if (!nucleus) return kept;
  const uint64_t wanted = sampling::nucleus(options, all.weight);
  const Bound part =
      find_digit(exchange.weights, {0, 0}, false, [&](const Sums&) { return wanted; });
  const Bound bound =
      find_key(tokens, gathered, exchange.keys[1], scale, part, lowest, plain, false, wanted);
  kept.key = bound.digit;
  const uint64_t each = scale.weight(bound.digit);
  kept.equals = (wanted - bound.above.weight + each - 1) / each;
  kept.each = each < kept.least ? 0 : each;
  return kept;
}

// Calls found(token) on the lane of the first token, in their order, at which the sum of what is
// kept exceeds a target, which target(sum of all) tells.
template <typename Target, typename Found>
inline void locate(const Stretch& tokens, Exchange& exchange, int rank, const Kept& kept,
                   Target target, Found found) {
  __shared__ Sums warps[kWarps];
  const int lane = tokens.lane(), warp = threadIdx.x / 32;
  Sums mine{0, 0};  // how many have the bound, and the weight of those above
#pragma unroll kFlight
  for (int64_t round = 0; round < kRounds; ++round) {
    if (!tokens.exists(round)) continue;
    const Numbers keys = tokens.keys(round), weights = tokens.weights(round);
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      mine.count += keys.at[e] == kept.key;
      mine.weight += kept.above(keys.at[e], unpacked(weights.at[e]));
    }
  }
  mine = fold_sums(mine);
  __syncthreads();
  if (lane == 0) warps[warp] = mine;
  __syncthreads();
  const Sums block = fold_sums(warps[lane]);
  Sums before = fold_sums(lane < warp ? warps[lane] : Sums{0, 0});
  if (threadIdx.x == 0) {
    show(exchange.sums[rank].count, block.count);
    show(exchange.sums[rank].weight, block.weight);
  }
  meet();
  const Sums theirs = lane < kRanks ? seen(exchange.sums[lane]) : Sums{0, 0};
  const Sums all = fold_sums(theirs);
  before = before + fold_sums(lane < rank ? theirs : Sums{0, 0});
  const uint64_t wanted = target(all.weight + kept.tied(all.count));
  const Sums after = before + mine;
  if (wanted < before.weight + kept.tied(before.count) ||
      wanted >= after.weight + kept.tied(after.count)) {
    return;
  }
#pragma unroll 1
  for (int64_t round = 0; round < kRounds; ++round) {
    Numbers keys{}, weights{};
    if (tokens.exists(round)) keys = tokens.keys(round), weights = tokens.weights(round);
    Sums own{0, 0};
    for (int e = 0; e < kPack; ++e) {
      own.count += keys.at[e] == kept.key;
      own.weight += kept.above(keys.at[e], unpacked(weights.at[e]));
    }
    const Sums upto = before + scan_warp(own, lane);
    Sums reached{upto.count - own.count, upto.weight - own.weight};
    for (int e = 0; e < kPack; ++e) {
      const bool passed = reached.weight + kept.tied(reached.count) > wanted;
      reached.count += keys.at[e] == kept.key;
      reached.weight += kept.above(keys.at[e], unpacked(weights.at[e]));
      if (!passed && reached.weight + kept.tied(reached.count) > wanted) {
        found(tokens.token(round) + e);
      }
    }
    before = {__shfl_sync(0xffffffffU, upto.count, 31), __shfl_sync(0xffffffffU, upto.weight, 31)};
  }
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
  uint32_t highest = 0;
  int64_t first = 0;
  const auto compare = [&](int64_t token, const Numbers& keys) {
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      if (keys.at[e] > highest) highest = keys.at[e], first = token + e;
    }
  };
  tokens.from_scores([&](int64_t token, const Numbers& keys) {
    if (draws || penalises) tokens.keep_keys(token, keys);
    compare(token, keys);
  });
  if (draws && (options.top_p < 1 || sampling::kept_count(options, kSize) > 0)) {
    constexpr int kWords = sizeof(Histogram) / sizeof(uint64_t) * 9;
    auto* words = reinterpret_cast<uint64_t*>(&exchange.weights);
    for (int i = rank * kThreads + threadIdx.x; i < kWords; i += kRanks * kThreads) words[i] = 0;
  }
  if (penalises) {
    const auto penalty = static_cast<float>(options.repetition_penalty);
    tokens.penalise(history, length, newest, penalty, rank);
    highest = 0;
    tokens.from_keys(0, kRounds, compare);
  }
  uint64_t best = static_cast<uint64_t>(highest) << 32 | static_cast<uint32_t>(~first);
  best = fold_lanes<kThreads>(best, Higher{});
  if (threadIdx.x == 0) show(exchange.best[rank], best);
  meet();
  const int lane = tokens.lane();
  best = fold_warp(lane < kRanks ? seen(exchange.best[lane]) : 0, Higher{});
  highest = static_cast<uint32_t>(best >> 32);
  if (!draws || highest <= sampling::kNoKey) {
    first = static_cast<uint32_t>(~best);
    if (rank == 0 && threadIdx.x == 0) result.put(newest, highest > sampling::kNoKey ? first : -1);
    return;
  }
  const Scale scale{highest, sampling::halvings(options.temperature)};
  const Kept kept = select(tokens, exchange, options, scale, !penalises);
  locate(
      tokens, exchange, rank, kept, [&](uint64_t total) { return sampling::drawn(bits, total); },
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
