// One step of generating: the newest token goes into the history, the next one is drawn from the
// scores as kernels/shared/sampling.h says. NPUSIM_RANKS blocks, a cluster, share the tokens, a
// stretch for each warp, and tell each other what they find. Bounds are found by histograms, first
// over distances from the highest score, then over the keys of one such part; places by sums in the
// order of tokens. Where few tokens can be left, one block compares each with each. Where there are
// no clusters, the first block does it all.
#include "kernels/cuda/block.h"
#include "kernels/cuda/mma_cluster.h"
#include "kernels/shared/sampling.h"

namespace npusim {

using T = Storage<params.dtype>;
using sampling::Options;

constexpr int kRanks = kHasClusters ? NPUSIM_RANKS : 1;
constexpr int kThreads = NPUSIM_BLOCK, kWarps = kThreads / 32;
constexpr int kSize = params.size;
static_assert(params.size < 1 << 30, "tokens are numbered in 32 bits");
constexpr int kPack = kSize % 4 == 0 ? 4 : 1;  // tokens of a lane that lie together
constexpr int kAtOnce = kRanks * kThreads * kPack;
constexpr int kRounds = (kSize + kAtOnce - 1) / kAtOnce;
constexpr int kFlight = kRounds < 5 ? kRounds : 5;  // rounds whose loads are under way
constexpr int kDigits = kThreads, kFew = 256;
constexpr int kTile = 65535 / (kThreads * kPack);  // rounds until a block's sums could wrap
constexpr float kParts = 31.0f;                    // of a halving, of which there are 33
static_assert(kDigits == 1024 && kWarps == 32 && kRanks <= 32);
// Bits that no key of a score without a penalty differs in.
constexpr int kPlainBits = sizeof(T) == 2 ? 13 : 0;

using Numbers = Pack<uint32_t, kPack>;

struct Sums {
  uint32_t count;
  uint64_t weight;

  Sums operator+(const Sums& other) const { return {count + other.count, weight + other.weight}; }
};

// What blocks tell each other in memory.
struct Exchange {
  uint64_t best[NPUSIM_RANKS];
  Sums sums[NPUSIM_RANKS];
  uint64_t few[kFew];  // keys, and their tokens
  int32_t count, unused[3];
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

template <typename V>
inline V seen(const V& value) {
  return *const_cast<const volatile V*>(&value);
}
template <typename V>
inline void show(V& at, V value) {
  *const_cast<volatile V*>(&at) = value;
}

struct Higher {
  uint64_t operator()(uint64_t a, uint64_t b) const { return b > a ? b : a; }
};

// Sums of the lanes up to each.
template <typename V>
inline V scan_warp(V x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const V left = __shfl_up_sync(0xffffffffU, x, step);
    if (lane >= step) x += left;
  }
  return x;
}
inline Sums fold_sums(const Sums& x) {
  return {fold_warp(x.count, Plus{}), fold_warp(x.weight, Plus{})};
}

// Weights in 32 bits: that of the highest score is the only one that needs 33.
constexpr uint32_t kWhole = 0xffffffffU;
inline uint32_t packed(uint64_t weight) {
  return weight > kWhole ? kWhole : static_cast<uint32_t>(weight);
}
inline uint64_t unpacked(uint32_t weight) {
  return weight == kWhole ? sampling::kOne : weight;
}

// What keys are relative to.
struct Scale {
  uint32_t highest;
  float top, scale, parts;

  Scale(uint32_t key, double temperature)
      : highest(key),
        top(sampling::score_of(key)),
        scale(sampling::halvings(temperature)),
        parts(scale * (kParts / 16777216.0f)) {}

  uint64_t weight(uint32_t key) const { return sampling::weight_of_key(key, highest, scale); }
  // The part that a key lies in, a higher one for higher keys; 0 where nothing may weigh anything.
  int part(uint32_t key) const {
    const float down = key == highest ? 0.0f : (top - sampling::score_of(key)) * parts;
    return down < kDigits - 1 ? kDigits - 1 - static_cast<int>(down) : 0;
  }
  // Keys between which those of a part lie that weigh anything.
  void range(int part, uint32_t& least, uint32_t& most) const {
    const float slack = top < 0 ? top * -1e-6f : top * 1e-6f;
    const auto down = static_cast<float>(kDigits - 1 - part);
    least = sampling::key_of(top - ((down + 1.0f) / parts * 1.00001f + slack));
    most = sampling::key_of(top - (down / parts * 0.99999f - slack));
    if (part == 0 || least <= sampling::kNoKey) least = sampling::kNoKey + 1;
    if (most > highest || most < least || part == kDigits - 1) most = highest;
  }
};

// The tokens of a warp, and what it keeps of them in scratch memory: the keys of their scores, and
// their weights.
class Stretch {
 public:
  Stretch(const T* logits, uint32_t* keys, int rank)
      : logits_(logits),
        keys_(keys),
        weights_(keys + (kSize + 3) / 4 * 4),
        lane_(threadIdx.x % 32),
        first_((rank * kWarps + threadIdx.x / 32) * kRounds * 32 * kPack) {}

  // f(first token, scores) for this lane's tokens.
  template <typename F>
  void from_scores(F f) const {
    const bool whole = is_packed<kPack>(logits_);
    for (int begin = 0; begin < kRounds; begin += kFlight) {
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
        float numbers[kPack];
#pragma unroll
        for (int e = 0; e < kPack; ++e) numbers[e] = decode<float>(scores[i].at[e]);
        f(token(begin + i), numbers);
      }
    }
  }
  // The same from the keys, of some rounds, so many loads at once.
  template <int kAhead, typename F>
  void from_keys(int begin, int end, F f) const {
#pragma unroll 1
    for (int round = begin; round < end && exists(round); round += kAhead) {
      Numbers ahead[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (round + i < end && exists(round + i)) ahead[i] = keys(round + i);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (round + i < end && exists(round + i)) f(token(round + i), ahead[i]);
      }
    }
  }

  void keep_keys(int token, const Numbers& keys) const { store_pack(keys_ + token, keys); }
  void keep_weights(int token, const Numbers& weights) const {
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
  int token(int round) const { return first_ + (round * 32 + lane_) * kPack; }
  bool exists(int round) const { return round < kRounds && token(round) < kSize; }
  Numbers keys(int round) const { return load_pack<kPack>(keys_ + token(round)); }
  Numbers weights(int round) const { return load_pack<kPack>(weights_ + token(round)); }

 private:
  const T* logits_;
  uint32_t* keys_;
  uint32_t* weights_;
  int lane_;
  int first_;
};

// A block's histograms: sums in two halves of 16 bits while tokens are added, then the sums of each
// digit, and of 32 digits each, which all blocks of the cluster tell each other. Two of these take
// turns: a block may still read one when another fills the next.
__shared__ uint32_t halves[2][kDigits];
__shared__ uint64_t digits[2][kDigits], groups[2][kRanks][32];

// Of tokens in the order of their keys, where a sum from the highest on reaches what was wanted:
// the digit or the key there, the sum over all that are higher, and over those that have it.
struct Bound {
  uint32_t key;
  uint64_t above, at, wanted;
};

// The sum that is looked for: a number, or what options say of the sum of all; 0: none.
struct Goal {
  const Options* options;
  uint64_t wanted;  // of top-p where it is 0

  uint64_t of(uint64_t total) const {
    if (options == nullptr) return wanted;
    if (wanted == 0) return sampling::nucleus(*options, total);
    return wanted < total ? wanted : 0;
  }
};

// Tells all blocks what this one has added up, in its turn.
inline void collect(int turn, int rank, bool more) {
  __syncthreads();
  const int i = threadIdx.x, lane = i % 32;
  const uint64_t low = halves[0][i], high = halves[1][i];
  const uint64_t digit = low + (high << 16) + (more ? digits[turn][i] : 0);
  digits[turn][i] = digit;
  halves[0][i] = halves[1][i] = 0;
  const uint64_t group = fold_warp(digit, Plus{});
  if (lane < kRanks) show(*in_block(&groups[turn][rank][i / 32], lane), group);
  __syncthreads();
}

// The lane, from the highest on, at which the sums reach what is wanted; for all lanes.
inline Bound search_lanes(uint64_t own, uint64_t above, uint64_t wanted) {
  __shared__ Bound found;
  const int lane = threadIdx.x % 32;
  const uint64_t upto = above + scan_warp(own, lane), before = upto - own;
  if (lane == 0) found = {0, above, 0, wanted};
  __syncwarp();
  if (before < wanted && upto >= wanted) {
    found = {31 - static_cast<uint32_t>(lane), before, own, wanted};
  }
  __syncwarp();
  const Bound result = found;
  __syncwarp();
  return result;
}

// The digit, of what all blocks have added up, in which the sum from the highest on, `above` to
// begin with, reaches the goal; 0 if there is none.
__attribute__((noinline)) inline Bound search(int turn, uint64_t above, Goal goal) {
  __shared__ Bound result;
  meet();
  const int down = 31 - static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x < 32) {
    uint64_t group = 0, digit = 0;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) group += seen(groups[turn][r][down]);
    const uint64_t wanted = goal.of(fold_warp(group, Plus{}));
    const Bound first = search_lanes(group, above, wanted);
    const auto* at = &digits[turn][first.key * 32 + down];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) digit += seen(*in_block(at, r));
    const Bound second = search_lanes(digit, first.above, first.at > 0 ? wanted : 0);
    if (threadIdx.x == 0) {
      result = {first.key * 32 + second.key, second.above, second.at, wanted};
    }
  }
  __syncthreads();
  return result;
}

// Finds such a digit of sums over tokens. f(token, keys, add) is called once for each pack, and
// calls add(digit, amount) for what counts.
template <int kAhead, typename F>
inline Bound find_digit(const Stretch& tokens, int& turn, int rank, uint64_t above, F f,
                        Goal goal) {
  const auto add = [](int digit, uint64_t amount) {
    if (amount & 0xffff) atomicAdd(&halves[0][digit], static_cast<uint32_t>(amount & 0xffff));
    if (amount >> 16) atomicAdd(&halves[1][digit], static_cast<uint32_t>(amount >> 16));
  };
  for (int begin = 0; begin < kRounds; begin += kTile) {
    const int end = begin + kTile < kRounds ? begin + kTile : kRounds;
    tokens.template from_keys<kAhead>(begin, end,
                                      [&](int token, const Numbers& keys) { f(token, keys, add); });
    collect(turn, rank, begin > 0);
  }
  const Bound found = search(turn, above, goal);
  turn ^= 1;
  return found;
}

// The key in a part at which a sum, of weights or of one each, reaches what is wanted in that part,
// of keys from `lowest` on. Keys of scores without a penalty differ in their high bits alone where
// scores have 16.
inline Bound find_key(const Stretch& tokens, int& turn, int rank, const Scale& scale, Bound bound,
                      uint32_t lowest, bool plain, bool weighs) {
  const int unit = plain ? kPlainBits : 0, part = static_cast<int>(bound.key);
  const Goal goal{nullptr, bound.wanted};
  uint32_t least, most;
  scale.range(part, least, most);
  least = (least > lowest ? least : lowest) >> unit, most >>= unit;
#pragma unroll 1
  for (bool first = true; first || least < most; first = false) {
    const uint32_t span = most - least;
    int shift = 0;
    while (span >> shift >= kDigits) ++shift;
    const auto count = [&](int, const Numbers& keys, auto add) {
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const uint32_t key = keys.at[e], off = (key >> unit) - least;
        if (off <= span && key >= lowest && scale.part(key) == part) {
          add(static_cast<int>(off >> shift), weighs ? scale.weight(key) : 1);
        }
      }
    };
    bound = find_digit<kFlight>(tokens, turn, rank, bound.above, count, goal);
    least += bound.key << shift;
    const uint32_t end = least + ((1u << shift) - 1);
    most = end < most ? end : most;
  }
  const uint32_t low = unit > 0 && !(least >> (31 - unit)) ? (1u << unit) - 1 : 0;
  bound.key = least << unit | low;
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
  Sums of(const Numbers& keys, const Numbers& weights) const {
    Sums sums{0, 0};
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      sums.count += keys.at[e] == key;
      sums.weight += above(keys.at[e], unpacked(weights.at[e]));
    }
    return sums;
  }
  uint64_t whole(const Sums& sums) const { return sums.weight + tied(sums.count); }
};

// Keeps the weights of all tokens, and finds what top-p leaves of those from `lowest` on.
inline void keep_nucleus(const Stretch& tokens, int& turn, int rank, const Options& options,
                         const Scale& scale, uint32_t lowest, bool plain, Kept& kept) {
  const auto weigh = [&](int token, const Numbers& keys, auto add) {
    Numbers weights;
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      const uint64_t weight = scale.weight(keys.at[e]);
      weights.at[e] = packed(weight);
      if (keys.at[e] >= lowest) add(scale.part(keys.at[e]), weight);
    }
    tokens.keep_weights(token, weights);
  };
  const Bound part = find_digit<1>(tokens, turn, rank, 0, weigh, {&options, 0});
  const Bound bound = find_key(tokens, turn, rank, scale, part, lowest, plain, true);
  kept.key = bound.key;
  const uint64_t each = scale.weight(bound.key);
  kept.equals = (part.wanted - bound.above + each - 1) / each;
  kept.each = each < kept.least ? 0 : each;
}

// Sums up what is kept of the tokens of this lane.
inline Sums sum_kept(const Stretch& tokens, const Kept& kept) {
  Sums mine{0, 0};
#pragma unroll kFlight
  for (int round = 0; round < kRounds; ++round) {
    if (tokens.exists(round)) mine = mine + kept.of(tokens.keys(round), tokens.weights(round));
  }
  return mine;
}

// Keeps the weights of all tokens; returns the sum of what is kept of this lane's.
inline Sums weigh_kept(const Stretch& tokens, const Kept& kept, const Scale& scale) {
  Sums mine{0, 0};
  tokens.template from_keys<1>(0, kRounds, [&](int token, const Numbers& keys) {
    Numbers weights;
#pragma unroll
    for (int e = 0; e < kPack; ++e) weights.at[e] = packed(scale.weight(keys.at[e]));
    tokens.keep_weights(token, weights);
    mine = mine + kept.of(keys, weights);
  });
  return mine;
}

// Calls found(token) on the lane of the first token, in their order, at which the sum of what is
// kept, `mine` of this lane's, exceeds a target, which target(sum of all) tells.
template <typename Target, typename Found>
inline void locate(const Stretch& tokens, Exchange& exchange, int rank, const Kept& kept, Sums mine,
                   Target target, Found found) {
  __shared__ Sums warps[kWarps];
  const int lane = tokens.lane(), warp = threadIdx.x / 32;
  mine = fold_sums(mine);
  if (lane == 0) warps[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    const Sums block = fold_sums(warps[lane]);
    if (lane == 0) show(exchange.sums[rank].count, block.count);
    if (lane == 0) show(exchange.sums[rank].weight, block.weight);
  }
  Sums before = fold_sums(lane < warp ? warps[lane] : Sums{0, 0});
  meet();
  Sums theirs{0, 0};
  if (lane < kRanks) {
    theirs = {seen(exchange.sums[lane].count), seen(exchange.sums[lane].weight)};
  }
  const Sums all = fold_sums(theirs);
  before = before + fold_sums(lane < rank ? theirs : Sums{0, 0});
  const uint64_t wanted = target(kept.whole(all));
  if (wanted < kept.whole(before) || wanted >= kept.whole(before + mine)) return;
  Numbers keys[kFlight], weights[kFlight];
#pragma unroll 1
  for (int begin = 0; begin < kRounds; begin += kFlight) {
    __shared__ Sums own[kFlight][32];  // of the one warp that comes here
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      keys[i] = weights[i] = {};
      if (!tokens.exists(begin + i)) continue;
      keys[i] = tokens.keys(begin + i), weights[i] = tokens.weights(begin + i);
    }
#pragma unroll
    for (int i = 0; i < kFlight; ++i) own[i][lane] = kept.of(keys[i], weights[i]);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < kFlight; ++i) {
      const Sums here = own[i][lane];
      const Sums upto{before.count + scan_warp(here.count, lane),
                      before.weight + scan_warp(here.weight, lane)};
      Sums reached{upto.count - here.count, upto.weight - here.weight};
      if (kept.whole(reached) <= wanted && kept.whole(upto) > wanted) {
        const Numbers k = tokens.keys(begin + i), w = tokens.weights(begin + i);
        int e = 0;
        for (; e < kPack - 1; ++e) {
          reached.count += k.at[e] == kept.key;
          reached.weight += kept.above(k.at[e], unpacked(w.at[e]));
          if (kept.whole(reached) > wanted) break;
        }
        found(tokens.token(begin + i) + e);
      }
      before = {__shfl_sync(0xffffffffU, upto.count, 31),
                __shfl_sync(0xffffffffU, upto.weight, 31)};
    }
    __syncwarp();
  }
}

// Draws among a few candidates, of which top-k is to keep `k` at least: each thread has one, and
// compares it with all.
template <typename Found>
inline void draw_few(const Exchange& exchange, const Options& options, const Scale& scale,
                     uint64_t k, uint64_t bits, Found found) {
  struct Candidate {
    uint64_t order, weight;  // key, then the complement of the token: higher ones come first
  };
  __shared__ Candidate all[kFew];
  const int count = seen(exchange.count), i = threadIdx.x;
  const int bound = i < count ? count : 0;
  Candidate mine{0, 0};
  if (i < count) {
    mine.order = seen(exchange.few[i]);
    mine.weight = scale.weight(static_cast<uint32_t>(mine.order >> 32));
    all[i] = mine;
  }
  __syncthreads();
  uint64_t higher = 0, before = 0;
  const auto key = static_cast<uint32_t>(mine.order >> 32);
#pragma unroll 4
  for (int j = 0; j < bound; ++j) {
    higher += (all[j].order >> 32) > key;
    before += all[j].order > mine.order ? all[j].weight : 0;
  }
  if (higher >= k) mine.weight = 0;
  if (options.top_p < 1) {
    const uint64_t total = fold_lanes<kThreads>(mine.weight, Plus{});
    if (before >= sampling::nucleus(options, total)) mine.weight = 0;
  }
  if (mine.weight < sampling::least_weight(options)) mine.weight = 0;
  const uint64_t total = fold_lanes<kThreads>(mine.weight, Plus{});
  if (i < count) all[i].weight = mine.weight;
  __syncthreads();
  const uint64_t wanted = sampling::drawn(bits, total);
  uint64_t first = 0;  // weights of lower tokens
#pragma unroll 4
  for (int j = 0; j < bound; ++j) {
    const bool lower = static_cast<uint32_t>(all[j].order) > static_cast<uint32_t>(mine.order);
    first += lower ? all[j].weight : 0;
  }
  if (first <= wanted && wanted - first < mine.weight) {
    found(static_cast<uint32_t>(~mine.order));
  }
}

// Tells the first block about the keys of a part and of those above, of which there are few.
inline void gather_few(const Stretch& tokens, Exchange& exchange, const Scale& scale, int part) {
#pragma unroll kFlight
  for (int round = 0; round < kRounds; ++round) {
    if (!tokens.exists(round)) continue;
    const Numbers keys = tokens.keys(round);
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      if (scale.part(keys.at[e]) < part) continue;
      const auto token = static_cast<uint32_t>(~(tokens.token(round) + e));
      const int place = atomicAdd(&exchange.count, 1);
      if (place < kFew) show(exchange.few[place], static_cast<uint64_t>(keys.at[e]) << 32 | token);
    }
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

// Draws a token of those that options leave.
template <typename Found>
inline void draw(const Stretch& tokens, Exchange& exchange, const Options& options,
                 const Scale& scale, bool plain, uint64_t bits, int rank, Found found) {
  halves[0][threadIdx.x] = halves[1][threadIdx.x] = 0;
  __syncthreads();
  int turn = 0;
  const auto k = static_cast<uint64_t>(sampling::kept_count(options, kSize));
  uint32_t lowest = sampling::kNoKey + 1;
  if (k > 0) {
    const auto count = [&](int, const Numbers& keys, auto add) {
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const int part = scale.part(keys.at[e]);
        if (part > 0) add(part, 1);
      }
    };
    const Bound part = find_digit<kFlight>(tokens, turn, rank, 0, count, {&options, k});
    if (part.at > 0 && part.above + part.at <= kFew) {
      gather_few(tokens, exchange, scale, static_cast<int>(part.key));
      meet();
      if (rank == 0) draw_few(exchange, options, scale, k, bits, found);
      return;
    }
    if (part.at > 0) {
      lowest = find_key(tokens, turn, rank, scale, part, lowest, plain, false).key;
    }
  }
  Kept kept{lowest - 1, 0, 0, sampling::least_weight(options)};
  Sums mine;
  if (options.top_p < 1) {
    keep_nucleus(tokens, turn, rank, options, scale, lowest, plain, kept);
    mine = sum_kept(tokens, kept);
  } else {
    mine = weigh_kept(tokens, kept, scale);
  }
  locate(
      tokens, exchange, rank, kept, mine,
      [&](uint64_t total) { return sampling::drawn(bits, total); }, found);
}

inline void sample(const T* logits, const Options& options, uint64_t bits, int64_t length,
                   const int64_t* history, const Result& result, uint32_t* keys,
                   Exchange& exchange) {
  const int rank = blockIdx.x;
  const Stretch tokens(logits, keys, rank);
  const int64_t newest = *result.token;
  const bool draws = options.temperature > 0, penalises = options.repetition_penalty != 1.0;
  float top = -sampling::kInfiniteScore;
  int first = 0;
  const auto compare = [&](int token, const float (&scores)[kPack]) {
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      if (scores[e] > top) top = scores[e], first = token + e;
    }
  };
  if (draws || penalises) {
    tokens.from_scores([&](int token, const float (&scores)[kPack]) {
      Numbers keys;
#pragma unroll
      for (int e = 0; e < kPack; ++e) keys.at[e] = sampling::key_of(scores[e]);
      tokens.keep_keys(token, keys);
      compare(token, scores);
    });
  } else {
    tokens.from_scores(compare);
  }
  if (rank == 0 && threadIdx.x == 0) show(exchange.count, 0);
  if (penalises) {
    const auto penalty = static_cast<float>(options.repetition_penalty);
    tokens.penalise(history, length, newest, penalty, rank);
    top = -sampling::kInfiniteScore;
    tokens.template from_keys<kFlight>(0, kRounds, [&](int token, const Numbers& keys) {
      float scores[kPack];
#pragma unroll
      for (int e = 0; e < kPack; ++e) scores[e] = sampling::score_of(keys.at[e]);
      compare(token, scores);
    });
  }
  uint64_t best =
      static_cast<uint64_t>(sampling::key_of(top)) << 32 | static_cast<uint32_t>(~first);
  best = fold_lanes<kThreads>(best, Higher{});
  if (threadIdx.x == 0) show(exchange.best[rank], best);
  meet();
  const int lane = tokens.lane();
  best = fold_warp(lane < kRanks ? seen(exchange.best[lane]) : uint64_t{0}, Higher{});
  const auto highest = static_cast<uint32_t>(best >> 32);
  if (!draws || highest <= sampling::kNoKey) {
    first = static_cast<uint32_t>(~best);
    if (rank == 0 && threadIdx.x == 0) result.put(newest, highest > sampling::kNoKey ? first : -1);
    return;
  }
  const Scale scale(highest, options.temperature);
  draw(tokens, exchange, options, scale, !penalises, bits, rank,
       [&](int token) { result.put(newest, token); });
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
