// Drawing from the tokens that bounds leave: by sums in the order of tokens, or, of a few
// candidates, by one block that compares each with each.
#pragma once
#include "kernels/cuda/sampling/bounds.h"

namespace npusim {

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

}  // namespace npusim
