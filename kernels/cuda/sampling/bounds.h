// Bounds that top-k and top-p set: histograms over distances from the highest score, then over the
// keys of one part of them, each searched from the highest on by all blocks at once.
#pragma once
#include "kernels/cuda/sampling/tokens.h"

namespace npusim {

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
  if (lane < kRanks) show(*map_shared_rank(&groups[turn][rank][i / 32], lane), group);
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
    for (int r = 0; r < kRanks; ++r) digit += seen(*map_shared_rank(at, r));
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

}  // namespace npusim
