// A pass of a stable radix sort of keys with positions by one digit of the keys (Satish, Harris and
// Garland, "Designing efficient sorting algorithms for manycore GPUs", 2009), in three launches:
// blocks count the digits of their tiles; a block a digit turns its counts into how many of the
// digit lie in tiles before; and blocks move their tiles. A thread's place follows from keys alone,
// so the order is the same in each run. After a pass for each digit, the lowest first, all is
// sorted, and equal keys are in their old order. A single tile is sorted in one launch.
//
// NPUSIM_TILE keys a block, NPUSIM_DIGIT_BITS (8 at most) a pass; blocks have 256 threads.
#pragma once
#include "kernels/cuda/common/scalar.h"

namespace npusim {

constexpr int kDigitBits = NPUSIM_DIGIT_BITS, kDigits = 1 << kDigitBits;
constexpr int kTile = NPUSIM_TILE, kSorters = 256, kWarps = kSorters / 32;
constexpr int kEach = kTile / kSorters;  // keys of a thread
static_assert(kDigits <= kSorters, "a thread has one digit at most");

template <typename K>
inline int digit_of(K key, int pass) {
  return static_cast<int>(key >> (pass * kDigitBits)) & (kDigits - 1);
}

// Returns what a block's threads before this one give, and all of them.
struct Sums {
  uint32_t before, all;
};
inline Sums sums_of_block(uint32_t value) {
  __shared__ uint32_t totals[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t left = __shfl_up_sync(0xffffffffU, sum, step);
    if (lane >= step) sum += left;
  }
  __syncthreads();
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  Sums sums{sum - value, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) sums.before += totals[w];
    sums.all += totals[w];
  }
  return sums;
}

// Where a sort of `tiles` tiles keeps its counts: [kDigits, tiles], and a digit's total.
struct DigitCounts {
  uint32_t* of_tiles;
  uint32_t* totals;
  int64_t tiles;

  // Counts the digits of a tile; key(e) is the e-th of this thread, exists(e) whether it is there.
  template <typename Key, typename Exists>
  void count(int64_t tile, int pass, Key key, Exists exists) const {
    __shared__ uint32_t counts[kDigits];
    const int digit = threadIdx.x;
    if (digit < kDigits) counts[digit] = 0;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (exists(e)) atomicAdd(&counts[digit_of(key(e), pass)], 1U);
    }
    __syncthreads();
    if (digit < kDigits) of_tiles[digit * tiles + tile] = counts[digit];
  }

  // A block's part: one digit.
  void scan(int digit) const {
    uint32_t* mine = of_tiles + digit * tiles;
    uint32_t before = 0;
    for (int64_t first = 0; first < tiles; first += kSorters) {
      const int64_t tile = first + threadIdx.x;
      const Sums sums = sums_of_block(tile < tiles ? mine[tile] : 0);
      if (tile < tiles) mine[tile] = before + sums.before;
      before += sums.all;
    }
    if (threadIdx.x == 0) totals[digit] = before;
  }

  // All digits, a thread each, where blocks of other sorts fill the device.
  void scan_all() const {
    constexpr int kLoads = 8;  // at once
    const int digit = threadIdx.x;
    if (digit >= kDigits) return;
    uint32_t* mine = of_tiles + digit * tiles;
    uint32_t before = 0;
    for (int64_t first = 0; first < tiles; first += kLoads) {
      uint32_t counts[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) counts[i] = first + i < tiles ? mine[first + i] : 0;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (first + i < tiles) mine[first + i] = before;
        before += counts[i];
      }
    }
    totals[digit] = before;
  }
};

// Lanes of the warp that have the same digit, of those with `exists`.
inline unsigned lanes_with(int digit, bool exists) {
  unsigned lanes = __ballot_sync(0xffffffffU, exists);
#pragma unroll
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const unsigned set = __ballot_sync(0xffffffffU, digit >> bit & 1);
    lanes &= digit >> bit & 1 ? set : ~set;
  }
  return lanes;
}

// The e-th key of a thread: a warp has neighbouring keys, 32 of them at a time.
inline int64_t place_in_tile(int e) {
  return static_cast<int>(threadIdx.x) / 32 * 32 * kEach + e * 32 + threadIdx.x % 32;
}

// Counts of each warp's digits in a tile, then where they go.
using WarpDigits = uint32_t[kWarps][kDigits];

// Ranks a thread's keys among its warp's of the same digit; exists(e): whether there is an e-th.
template <typename K, typename Exists>
inline void rank_in_warps(const K (&keys)[kEach], int pass, Exists exists, WarpDigits& digits,
                          uint32_t (&ranks)[kEach]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < kWarps * kDigits; i += kSorters) (&digits[0][0])[i] = 0;
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int digit = digit_of(keys[e], pass);
    const unsigned same = lanes_with(digit, exists(e));
    const int before = __popc(same & ((1U << lane) - 1));
    ranks[e] = digits[warp][digit] + before;
    __syncwarp();
    if (exists(e) && before == 0) digits[warp][digit] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
}

// Makes counts of a digit places, the first at `at`; returns what follows the last.
inline uint32_t place_digit(WarpDigits& digits, int digit, uint32_t at) {
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const uint32_t count = digits[w][digit];
    digits[w][digit] = at;
    at += count;
  }
  return at;
}

// Moves keys and positions of a tile to where they belong. `positions` null: a key's is where it
// lies.
template <typename K>
inline void move_tile(const DigitCounts& counts, int64_t tile, int64_t size, int pass,
                      const K* keys, const uint32_t* positions, K* to_keys,
                      uint32_t* to_positions) {
  __shared__ WarpDigits digits;
  const int64_t first = tile * kTile;
  const auto exists = [=](int e) { return first + place_in_tile(e) < size; };
  K mine[kEach];
  uint32_t ranks[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) mine[e] = exists(e) ? keys[first + place_in_tile(e)] : 0;
  rank_in_warps(mine, pass, exists, digits, ranks);
  const int digit = threadIdx.x;
  const uint32_t lower = sums_of_block(digit < kDigits ? counts.totals[digit] : 0).before;
  if (digit < kDigits) {
    place_digit(digits, digit, lower + counts.of_tiles[digit * counts.tiles + tile]);
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (!exists(e)) continue;
    const int64_t i = first + place_in_tile(e);
    const uint32_t to = digits[threadIdx.x / 32][digit_of(mine[e], pass)] + ranks[e];
    to_keys[to] = mine[e];
    to_positions[to] = positions == nullptr ? static_cast<uint32_t>(i) : positions[i];
  }
}

// All passes over keys that are one tile, in a launch of one block. mine[e], at[e]: a key and what
// goes with it, of place place_in_tile(e), of those below `size`; before and after.
template <typename K>
inline void sort_tile(K (&mine)[kEach], uint32_t (&at)[kEach], int size, int passes) {
  __shared__ WarpDigits digits;
  __shared__ K keys[kTile];
  __shared__ uint32_t positions[kTile];
  const auto exists = [=](int e) { return place_in_tile(e) < size; };
  uint32_t ranks[kEach];
  for (int pass = 0; pass < passes; ++pass) {
    rank_in_warps(mine, pass, exists, digits, ranks);
    const int digit = threadIdx.x;
    uint32_t count = 0;
    if (digit < kDigits) count = place_digit(digits, digit, 0);
    const uint32_t lower = sums_of_block(count).before;
    if (digit < kDigits) {
      for (int w = 0; w < kWarps; ++w) digits[w][digit] += lower;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (!exists(e)) continue;
      const uint32_t to = digits[threadIdx.x / 32][digit_of(mine[e], pass)] + ranks[e];
      keys[to] = mine[e];
      positions[to] = at[e];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (!exists(e)) continue;
      mine[e] = keys[place_in_tile(e)];
      at[e] = positions[place_in_tile(e)];
    }
  }
}

}  // namespace npusim
