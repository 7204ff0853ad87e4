// The tokens that a step of generating draws from, shared by the blocks of a cluster: a stretch for
// each warp, the keys of their scores and their weights in scratch memory, and what blocks tell
// each other there.
#pragma once
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/cluster.h"
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
    cluster_arrive();
    cluster_wait();
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

}  // namespace npusim
