// The choice of sampling.h on one thread, in time linear in the number of tokens: nothing is
// sorted, bounds are found by histograms over the digits of keys.
#pragma once
#include <cstdint>

#include "kernels/shared/sampling.h"

namespace npusim::sampling {

constexpr int64_t kBlock = 64;  // scores that share one maximum

struct Candidate {
  uint32_t key;
  int32_t token;
  uint64_t weight;
};

// Room for `count` scores: a key for each block, and candidates.
struct Room {
  uint32_t* maxima;
  Candidate* candidates;
};
static inline int64_t blocks_of(int64_t count) {
  return (count + kBlock - 1) / kBlock;
}

// Of entries ordered by key, the one at which a sum from the highest on reaches what was wanted.
struct Bound {
  uint32_t key;
  uint64_t above;  // the sum over all higher keys
};

// `measure` of the entries at [0, count), whose keys `key` tells; `wanted` is at least 1 and at
// most the sum of all.
template <typename Key, typename Measure>
static inline Bound find_bound(int64_t count, uint64_t wanted, Key key, Measure measure) {
  constexpr int kShifts[] = {21, 10, 0};
  constexpr uint32_t kDigits = 2048;
  uint64_t sums[kDigits];
  uint64_t prefix = 0, above = 0;
  int end = 32;
  for (const int shift : kShifts) {
    const uint32_t digits = uint32_t{1} << (end - shift);
    for (uint32_t digit = 0; digit < digits; ++digit) sums[digit] = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t k = key(i);
      if (k >> end == prefix) sums[k >> shift & (digits - 1)] += measure(i);
    }
    uint32_t digit = digits - 1;
    for (; digit > 0 && above + sums[digit] < wanted; --digit) above += sums[digit];
    prefix = prefix << (end - shift) | digit;
    end = shift;
  }
  return {static_cast<uint32_t>(prefix), above};
}

// The highest of a block's scores; NaN counts as -inf. In lanes, so that the compiler may use
// vectors.
static inline float highest_of(const float* scores, int64_t count) {
  constexpr int64_t kLanes = 8;
  float lanes[kLanes];
  for (float& lane : lanes) lane = -kInfiniteScore;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float score = scores[i + lane];
      lanes[lane] = score > lanes[lane] ? score : lanes[lane];
    }
  }
  float highest = lanes[0];
  for (; i < count; ++i) highest = scores[i] > highest ? scores[i] : highest;
  for (const float lane : lanes) highest = lane > highest ? lane : highest;
  return highest;
}

// Fills the maxima; returns the first block of the highest one.
static inline int64_t find_maxima(const float* scores, int64_t count, uint32_t* maxima) {
  int64_t best = 0;
  for (int64_t block = 0; block < blocks_of(count); ++block) {
    const int64_t begin = block * kBlock, left = count - begin;
    maxima[block] = key_of(highest_of(scores + begin, left < kBlock ? left : kBlock));
    if (maxima[block] > maxima[best]) best = block;
  }
  return best;
}

// Candidates in the order of their tokens: all that top-k keeps, if they weigh anything. k blocks
// reach the k-th highest maximum of all, so at least k scores do, and only few beside them.
static inline int64_t collect(const float* scores, int64_t count, const Options& options,
                              uint32_t highest, const Room& room) {
  const int64_t k = kept_count(options, count), blocks = blocks_of(count);
  const float scale = halvings(options.temperature);
  const auto one = [](int64_t) { return uint64_t{1}; };
  uint32_t least = kNoKey + 1;
  if (k > 0 && k < blocks) {
    const auto maximum = [&](int64_t i) { return room.maxima[i]; };
    const uint32_t bound = find_bound(blocks, static_cast<uint64_t>(k), maximum, one).key;
    least = bound > least ? bound : least;
  }
  int64_t kept = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    if (room.maxima[block] < least) continue;
    const int64_t end = count < (block + 1) * kBlock ? count : (block + 1) * kBlock;
    for (int64_t i = block * kBlock; i < end; ++i) {
      const uint32_t key = key_of(scores[i]);
      if (key < least) continue;
      room.candidates[kept++] = {key, static_cast<int32_t>(i), weight_of_key(key, highest, scale)};
    }
  }
  if (k == 0 || k >= kept) return kept;
  const auto key = [&](int64_t i) { return room.candidates[i].key; };
  const uint32_t bound = find_bound(kept, static_cast<uint64_t>(k), key, one).key;
  int64_t last = 0;
  for (int64_t i = 0; i < kept; ++i) {
    if (room.candidates[i].key >= bound) room.candidates[last++] = room.candidates[i];
  }
  return last;
}

// Draws among the candidates that top-p and min-p keep.
static inline int64_t draw(const Candidate* candidates, int64_t count, const Options& options,
                           uint64_t bits) {
  uint64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += candidates[i].weight;
  const uint64_t wanted = nucleus(options, total), least = least_weight(options);
  Bound bound{0, 0};
  if (wanted > 0) {
    bound = find_bound(
        count, wanted, [&](int64_t i) { return candidates[i].key; },
        [&](int64_t i) { return candidates[i].weight; });
  }
  const auto visit = [&](auto keep) {  // in order, until `keep` says it has enough
    uint64_t reached = bound.above;
    for (int64_t i = 0; i < count; ++i) {
      const Candidate& c = candidates[i];
      if (c.key < bound.key || c.weight < least) continue;
      if (wanted > 0 && c.key == bound.key) {
        if (reached >= wanted) continue;
        reached += c.weight;
      }
      if (keep(c)) return;
    }
  };
  total = 0;
  visit([&](const Candidate& c) { return total += c.weight, false; });
  uint64_t left = drawn(bits, total);
  int64_t token = 0;
  visit([&](const Candidate& c) {
    if (left < c.weight) return token = c.token, true;
    return left -= c.weight, false;
  });
  return token;
}

// The next token, or -1 where no score is above -inf. The scores are after the penalty; `bits` are
// of no account where the temperature is 0.
static inline int64_t choose(const float* scores, int64_t count, const Options& options,
                             uint64_t bits, const Room& room) {
  if (count == 0) return -1;
  const int64_t block = find_maxima(scores, count, room.maxima);
  const uint32_t highest = room.maxima[block];
  if (highest <= kNoKey) return -1;
  if (!(options.temperature > 0)) {
    int64_t i = block * kBlock;
    while (key_of(scores[i]) != highest) ++i;
    return i;
  }
  return draw(room.candidates, collect(scores, count, options, highest, room), options, bits);
}

}  // namespace npusim::sampling
