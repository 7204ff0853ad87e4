// A row's queries and keys turned by rotary position embedding, and its keys and values appended to
// the pages that tables name. A thread turns a pair of elements, or eight neighbouring pairs, or
// moves twice as many elements of a value.
#pragma once
#include "kernels/cuda/attention/paged_destination.h"
#include "kernels/cuda/attention/turn.h"

namespace npusim::paged_rope {

using T = Storage<params.dtype>;
using C = Storage<params.cs_dtype>;

// Where a row's elements are, and where they go. Heads of queries, keys, values and y, and of the
// pools, lie so many elements apart.
struct Row {
  const T *q, *k, *v;
  const C *cos, *sin;
  T *y, *keys, *values;
  bool wide;  // all of these begin on 16 bytes
};

// What the parameters say of heads: H has kHeads, kKeyHeads, kD, kV, kTurned, kInterleaved, and
// kQStride, kKStride, kVStride, kYStride, kKeysStride, kValuesStride from head to head.
template <typename H, int kEach>
struct Units {
  static constexpr bool kEights = kEach == 8;
  static constexpr int kD = H::kD, kV = H::kV, kHalf = H::kTurned / 2;
  static constexpr int kPairs = (kD + 1) / 2 / kEach, kValuePairs = (kV + 1) / 2 / kEach;

  // Turns a pair of a head, or moves two neighbours beyond those that turn.
  static void turn_pair(const T* x, T* y, const C* cos, const C* sin, int pair) {
    if (pair >= kHalf) {
      const int at = 2 * pair;
      y[at] = x[at];
      if (at + 1 < kD) y[at + 1] = x[at + 1];
      return;
    }
    const int at = H::kInterleaved ? 2 * pair : pair;
    const int other = H::kInterleaved ? at + 1 : pair + kHalf;
    const float a = to_float(x[at]), b = to_float(x[other]);
    y[at] = encode<T>(turned_first(a, b, to_float(cos[at]), to_float(sin[at])));
    y[other] = encode<T>(turned_second(a, b, to_float(cos[other]), to_float(sin[other])));
  }

  // Eight pairs from `pair` on of a head that turns as a whole; chunks lie on 16 bytes.
  static void turn_eight(const T* x, T* y, const C* cos, const C* sin, int pair) {
    const uint4 low = load_kept(x + pair), high = load_kept(x + pair + kHalf);
    const Angles<C> angles(cos + pair, sin + pair, kHalf);
    const TurnedEight<T> turned(low, high, angles);
    *reinterpret_cast<uint4*>(y + pair) = turned.first;
    *reinterpret_cast<uint4*>(y + pair + kHalf) = turned.second;
  }

  static void turn(const T* x, T* y, const C* cos, const C* sin, int unit, bool wide) {
    if constexpr (kEights) {
      if (wide) return turn_eight(x, y, cos, sin, unit * 8);
    }
#pragma unroll 1
    for (int e = 0; e < kEach; ++e) turn_pair(x, y, cos, sin, unit * kEach + e);
  }

  static void move(const T* x, T* y, int unit, bool wide) {
    const int at = unit * 2 * kEach;
    if constexpr (kEights) {
      if (wide) {
        const uint4 low = load_kept(x + at), high = load_kept(x + at + 8);
        *reinterpret_cast<uint4*>(y + at) = low;
        *reinterpret_cast<uint4*>(y + at + 8) = high;
        return;
      }
    }
#pragma unroll 1
    for (int e = at; e < at + 2 * kEach && e < kV; ++e) y[e] = x[e];
  }

  // By `threads` threads, of which this is `thread`. `appends`: the row goes to the pools.
  static void run(const Row& row, bool appends, int thread, int threads) {
    constexpr int kOfQueries = H::kHeads * kPairs, kOfKeys = H::kKeyHeads * kPairs;
    constexpr int kOfValues = H::kKeyHeads * kValuePairs;
    const int count = appends ? kOfQueries + kOfKeys + kOfValues : kOfQueries;
#pragma unroll 1
    for (int i = thread; i < count; i += threads) {
      if (i < kOfQueries) {
        const int64_t head = i / kPairs;
        turn(row.q + head * H::kQStride, row.y + head * H::kYStride, row.cos, row.sin, i % kPairs,
             row.wide);
      } else if (i < kOfQueries + kOfKeys) {
        const int64_t head = (i - kOfQueries) / kPairs;
        turn(row.k + head * H::kKStride, row.keys + head * H::kKeysStride, row.cos, row.sin,
             (i - kOfQueries) % kPairs, row.wide);
      } else {
        const int unit = i - kOfQueries - kOfKeys;
        const int64_t head = unit / kValuePairs;
        move(row.v + head * H::kVStride, row.values + head * H::kValuesStride, unit % kValuePairs,
             row.wide);
      }
    }
  }
};

}  // namespace npusim::paged_rope
