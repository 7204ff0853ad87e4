// One step of generating: the newest token goes into the history, the next one is drawn from the
// scores as kernels/shared/sampling.h says. One threadgroup: its time is small against the products
// that make the scores. Scores become keys in scratch memory; top-k and top-p are bounds of keys,
// found by histograms over their digits from the highest on; the draw is where sums in the order of
// tokens pass a number.
#include "kernels/metal/common/threads.h"
#include "kernels/metal/sampling/binary64.h"
#include "kernels/shared/sampling.h"

namespace npusim {

typedef Storage<params.dtype> T;
using sampling::Options;

constant constexpr int kThreads = NPUSIM_BLOCK;
constant constexpr int kGroups = kThreads / 32;
constant constexpr int kSize = params.size;
constant constexpr int kRounds = (kSize + kThreads - 1) / kThreads;
constant constexpr int kDigits = kThreads;
constant constexpr int kDigitBits = 10;
constant constexpr int kTile = 63;  // rounds until a sum of 32 bits could wrap
static_assert(params.size < 1 << 30, "tokens are numbered in 32 bits");
static_assert(kDigits == 1 << kDigitBits && kGroups == 32, "a thread has a digit");

// What threads tell each other.
struct Room {
  threadgroup metal::atomic_uint* low;  // of a digit's sum: that of the 16 low bits, and the rest
  threadgroup metal::atomic_uint* high;
  threadgroup uint64_t* totals;  // of each SIMD group
  threadgroup uint64_t* found;   // a digit, and the sum over those above
  int thread_index;
};

inline void meet() {
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

struct Higher {
  uint64_t operator()(uint64_t a, uint64_t b) const { return b > a ? b : a; }
};

// The sum over the threads up to each.
inline uint64_t scan_lanes(uint64_t x, int lane) {
#pragma unroll
  for (ushort step = 1; step < 32; step *= 2) {
    const uint64_t left = lane_below(x, step);
    if (lane >= step) x += left;
  }
  return x;
}
inline uint64_t scan_threads(uint64_t x, Room room) {
  const int lane = room.thread_index % 32, own = room.thread_index / 32;
  x = scan_lanes(x, lane);
  meet();  // what was left has been read
  if (lane == 31) room.totals[own] = x;
  meet();
  for (int g = 0; g < own; ++g) x += room.totals[g];
  return x;
}
inline uint64_t sum_threads(uint64_t x, Room room) {
  return fold_threads<kThreads>(x, Plus(), room.totals, static_cast<uint>(room.thread_index));
}

// What counts of the keys: those from `lowest` on, one each or by their weights.
struct Measure {
  device const uint32_t* keys;
  uint32_t lowest, highest;
  bool weighs;
  float scale;

  uint64_t weight(uint32_t key) const { return sampling::weight_of_key(key, highest, scale); }
  uint64_t of(uint32_t key) const {
    if (key < lowest) return 0;
    return weighs ? weight(key) : 1;
  }
  uint64_t total(Room room) const {
    uint64_t sum = 0;
    for (int i = room.thread_index; i < kSize; i += kThreads) sum += of(keys[i]);
    return sum_threads(sum, room);
  }
};

// Of tokens in the order of their keys, the key at which a sum from the highest on reaches what was
// wanted, and the sum over all that are higher.
struct Bound {
  uint32_t key;
  uint64_t above;
};

// This thread's digit of what counts among keys that begin with `prefix`, above bit `end`.
inline uint64_t digit_sum(Measure measure, uint64_t prefix, int end, int shift, Room room) {
  const int digit = kDigits - 1 - room.thread_index;
  uint64_t sum = 0;
  for (int begin = 0; begin < kRounds; begin += kTile) {
    metal::atomic_store_explicit(room.low + digit, 0u, metal::memory_order_relaxed);
    metal::atomic_store_explicit(room.high + digit, 0u, metal::memory_order_relaxed);
    meet();
    for (int round = begin; round < kRounds && round < begin + kTile; ++round) {
      const int i = round * kThreads + room.thread_index;
      const uint64_t key = i < kSize ? measure.keys[i] : 0;
      const uint64_t amount = i < kSize && key >> end == prefix ? measure.of(key) : 0;
      const int at = static_cast<int>(key >> shift) & (kDigits - 1);
      const uint low = static_cast<uint>(amount & 0xffff), high = static_cast<uint>(amount >> 16);
      if (low != 0)
        metal::atomic_fetch_add_explicit(room.low + at, low, metal::memory_order_relaxed);
      if (high != 0)
        metal::atomic_fetch_add_explicit(room.high + at, high, metal::memory_order_relaxed);
    }
    meet();
    const uint64_t low = metal::atomic_load_explicit(room.low + digit, metal::memory_order_relaxed);
    sum += low;
    const uint64_t high =
        metal::atomic_load_explicit(room.high + digit, metal::memory_order_relaxed);
    sum += high << 16;
  }
  return sum;
}

// `wanted` is at least 1 and at most the sum of all that counts.
inline Bound find_bound(Measure measure, uint64_t wanted, Room room) {
  uint64_t prefix = 0, above = 0;
  for (int end = 32; end > 0;) {
    const int shift = end > kDigitBits ? end - kDigitBits : 0;
    const uint64_t sum = digit_sum(measure, prefix, end, shift, room);
    const uint64_t upto = above + scan_threads(sum, room);
    if (upto - sum < wanted && upto >= wanted) {
      room.found[0] = kDigits - 1 - room.thread_index;
      room.found[1] = upto - sum;
    }
    meet();
    prefix = prefix << (end - shift) | room.found[0];
    above = room.found[1];
    meet();
    end = shift;
  }
  return {static_cast<uint32_t>(prefix), above};
}

// The tokens that options leave: keys above the bound, and of those that have it so many; weights
// below `least` count nothing.
struct Kept {
  uint32_t key;
  uint64_t equals, each, least;

  uint64_t above(uint32_t candidate, Measure measure) const {
    const uint64_t weight = candidate > key ? measure.weight(candidate) : 0;
    return weight < least ? 0 : weight;
  }
  // What is kept where so much is above the bound and so many have it.
  uint64_t whole(uint64_t weight, uint64_t count) const {
    return weight + each * (count < equals ? count : equals);
  }
};

// What top-k, top-p and min-p leave; `measure` then counts keys that top-k left, by weight.
inline Kept keep(thread Measure& measure, thread const Options& options, Room room) {
  const uint64_t k = static_cast<uint64_t>(sampling::kept_count(options, kSize));
  measure.weighs = false;
  if (k > 0 && k < measure.total(room)) measure.lowest = find_bound(measure, k, room).key;
  measure.weighs = true;
  Kept kept = {measure.lowest - 1, 0, 0, sampling::least_weight(options)};
  const uint64_t wanted = sampling::nucleus(options, measure.total(room));
  if (wanted == 0) return kept;
  const Bound bound = find_bound(measure, wanted, room);
  const uint64_t each = measure.weight(bound.key);
  kept.key = bound.key;
  kept.equals = (wanted - bound.above + each - 1) / each;
  kept.each = each < kept.least ? 0 : each;
  return kept;
}

// Draws one of what is kept: returns it on the thread that has it, -1 elsewhere. SIMD groups have
// stretches of tokens, in their order.
inline int draw(Measure measure, Kept kept, uint64_t bits, Room room) {
  const int lane = room.thread_index % 32, own = room.thread_index / 32;
  const int first = own * kRounds * 32 + lane;
  uint64_t weight = 0, count = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t key = first + round * 32 < kSize ? measure.keys[first + round * 32] : 0;
    weight += kept.above(key, measure);
    count += key == kept.key;
  }
  const uint64_t weights = scan_threads(weight, room), counts = scan_threads(count, room);
  const uint64_t all = sum_threads(weight, room), equals = sum_threads(count, room);
  const uint64_t wanted = sampling::drawn(bits, kept.whole(all, equals));
  // Of the SIMD group: its sums, and those of the ones before it.
  weight = fold_lanes<32>(weight, Plus());
  count = fold_lanes<32>(count, Plus());
  uint64_t weight_before = fold_lanes<32>(weights, Higher()) - weight;
  uint64_t count_before = fold_lanes<32>(counts, Higher()) - count;
  if (wanted < kept.whole(weight_before, count_before)) return -1;
  if (wanted >= kept.whole(weight_before + weight, count_before + count)) return -1;
  int found = -1;
  for (int round = 0; round < kRounds; ++round) {
    const int token = first + round * 32;
    const uint32_t key = token < kSize ? measure.keys[token] : 0;
    const uint64_t own_weight = kept.above(key, measure), own_count = key == kept.key;
    const uint64_t weight_upto = weight_before + scan_lanes(own_weight, lane);
    const uint64_t count_upto = count_before + scan_lanes(own_count, lane);
    const uint64_t reached = kept.whole(weight_upto - own_weight, count_upto - own_count);
    if (reached <= wanted && wanted < kept.whole(weight_upto, count_upto)) found = token;
    weight_before = fold_lanes<32>(weight_upto, Higher());
    count_before = fold_lanes<32>(count_upto, Higher());
  }
  return found;
}

// Keys of all scores, after the penalty of those in the history.
inline void make_keys(device const T* logits, device uint32_t* keys, thread const Options& options,
                      device const int64_t* history, int64_t length, int64_t newest, int index) {
  for (int i = index; i < kSize; i += kThreads) {
    keys[i] = sampling::key_of(decode<float>(logits[i]));
  }
  threadgroup_barrier(metal::mem_flags::mem_device);
  if (options.repetition_penalty != static_cast<sampling::Real>(1)) {
    const float penalty = static_cast<float>(options.repetition_penalty);
    for (int64_t i = index; i < length; i += kThreads) {
      const int64_t token = i == length - 1 ? newest : history[i];
      if (token < 0 || token >= kSize) continue;
      keys[token] = sampling::key_of(sampling::penalised(decode<float>(logits[token]), penalty));
    }
  }
  threadgroup_barrier(metal::mem_flags::mem_device);
}

// The highest key, and behind it the complement of the first token that has it.
inline uint64_t find_best(device const uint32_t* keys, Room room) {
  uint64_t best = 0;
  for (int i = room.thread_index; i < kSize; i += kThreads) {
    const uint64_t own = static_cast<uint64_t>(keys[i]) << 32 | ~static_cast<uint32_t>(i);
    best = own > best ? own : best;
  }
  return fold_threads<kThreads>(best, Higher(), room.totals, static_cast<uint>(room.thread_index));
}

// The next token on the thread that has it, or -1 on the first where no score is above -inf; what
// other threads return is below that.
inline int choose(device const uint32_t* keys, thread const Options& options, uint64_t bits,
                  Room room) {
  constexpr int kOthers = -2;
  const uint64_t best = find_best(keys, room);
  const uint32_t highest = static_cast<uint32_t>(best >> 32);
  const bool any = highest > sampling::kNoKey;
  if (!any || !(options.temperature > static_cast<sampling::Real>(0))) {
    if (room.thread_index != 0) return kOthers;
    return any ? static_cast<int>(~static_cast<uint32_t>(best)) : -1;
  }
  Measure measure = {keys, sampling::kNoKey + 1, highest, false,
                     sampling::halvings(options.temperature)};
  const Kept kept = keep(measure, options, room);
  const int token = draw(measure, kept, bits, room);
  return token < 0 ? kOthers : token;
}

}  // namespace npusim

using namespace npusim;
[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    device const T* logits [[buffer(0)]], device const uint64_t* given [[buffer(1)]],
    device const uint64_t* seed [[buffer(2)]], device const int64_t* length [[buffer(3)]],
    device int64_t* token [[buffer(4)]], device int64_t* history [[buffer(5)]],
    device int64_t* chosen [[buffer(6)]], device uint32_t* keys [[buffer(7)]],
    device Failure* failure [[buffer(8)]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
  threadgroup metal::atomic_uint low[kDigits];
  threadgroup metal::atomic_uint high[kDigits];
  threadgroup uint64_t totals[kGroups];
  threadgroup uint64_t found[2];
  const int64_t count = *length;
  if (count < 1 || count > params.capacity) {
    if (thread_of_group == 0) report(failure, kOutOfRange, count, params.capacity);
    return;
  }
  const Room room = {low, high, totals, found, static_cast<int>(thread_of_group)};
  const Options options = {binary64(given[0]), binary64(given[1]), binary64(given[2]),
                           binary64(given[3]), binary64(given[4])};
  const int64_t newest = *token;
  make_keys(logits, keys, options, history, count, newest, room.thread_index);
  const uint64_t state = *seed + static_cast<uint64_t>(count) * sampling::kStep;
  const int next = choose(keys, options, sampling::mixed(state), room);
  if (next < -1) return;
  history[count - 1] = newest;
  *token = next < 0 ? 0 : next;
  *chosen = next;
}
