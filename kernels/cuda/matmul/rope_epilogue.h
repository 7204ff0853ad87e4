// What becomes of a product whose columns are queries, keys and values of rows of many requests
// (linear_rope_append): queries and keys are turned, keys and values go to the pages that tables
// name. Sums are rounded before, as if the product had been stored.
//
// With NPUSIM_ROPE_JOINED a block has both halves of a head and does it in its epilogue
// (swap_ab.h); else the product is stored in scratch memory, and a second launch does the rest
// (npusim_rope).
#pragma once
#include "kernels/cuda/attention/paged_rope.h"
#include "kernels/cuda/matmul/linear_operands.h"

namespace npusim {

struct RopeHeads {
  static constexpr int kHeads = static_cast<int>(params.heads);
  static constexpr int kKeyHeads = static_cast<int>(params.kv_heads);
  static constexpr int kD = static_cast<int>(params.head_dim), kV = kD, kTurned = kD;
  static constexpr bool kInterleaved = false;
  static constexpr int64_t kQStride = kD, kKStride = kD, kVStride = kD;
  static constexpr int64_t kYStride = params.y_strides[0];
  static constexpr int64_t kKeysStride = params.k_pool_strides[1];
  static constexpr int64_t kValuesStride = params.v_pool_strides[1];
};
static_assert((RopeHeads::kHeads + 2 * RopeHeads::kKeyHeads) * RopeHeads::kD == params.n);

// The operands of the product alone, whose y is scratch memory.
struct ProductOperands {
  static constexpr int kCount = 1 + kWeights + (params.has_bias ? 1 : 0);
  void* all[NPUSIM_ARGUMENTS];

  explicit ProductOperands(void* const* given) {
#pragma unroll
    for (int i = 0; i < NPUSIM_ARGUMENTS; ++i) all[i] = given[i];
    all[kCount] = given[NPUSIM_ARGUMENTS - 2];
  }
};

// The operands after the product's.
struct RopeOperands {
  using T = paged_rope::T;
  using C = paged_rope::C;
  enum {
    kCos = ProductOperands::kCount,
    kSin,
    kTables,
    kY = kTables + 3,
    kKeys,
    kValues,
    kScratch,
    kFailure
  };
  static_assert(kFailure == NPUSIM_ARGUMENTS - 1);
  using Tables = PagedTables<kTables>;
  static constexpr int kD = RopeHeads::kD, kHalf = kD / 2;

  void* const* operands;
  Tables tables;

  explicit RopeOperands(void* const* operands) : operands(operands), tables(operands, kFailure) {}

  T* tensor(int i) const { return static_cast<T*>(operands[i]); }
  const C* cos(int64_t row) const {
    return static_cast<const C*>(operands[kCos]) + row * params.cs_strides[0];
  }
  const C* sin(int64_t row) const {
    return static_cast<const C*>(operands[kSin]) + row * params.cs_strides[1];
  }
  bool are_aligned() const {
    bool all = true;
#pragma unroll
    for (const int i : {kCos, kSin, kY, kKeys, kValues}) all = all && is_aligned(operands[i], 16);
    return all;
  }
  // Where a row's keys and values are in the pools.
  T* keys(const PagedDestination& to) const {
    return tensor(kKeys) + to.page * params.k_pool_strides[0] + to.row * params.k_pool_strides[2];
  }
  T* values(const PagedDestination& to) const {
    return tensor(kValues) + to.page * params.v_pool_strides[0] + to.row * params.v_pool_strides[2];
  }
  // A row of the product in scratch memory.
  paged_rope::Row row(int64_t at, const PagedDestination& to) const {
    const T* q = tensor(kScratch) + at * params.n;
    const T* k = q + params.heads * kD;
    return {q,        k,          k + params.kv_heads * kD,
            cos(at),  sin(at),    tensor(kY) + at * params.y_strides[1],
            keys(to), values(to), are_aligned()};
  }
};

// Eight pairs of a head, for the epilogue of a block that finishes rows of them (swap_ab.h).
struct RopeColumns {
  using T = RopeOperands::T;
  using C = RopeOperands::C;
  using Read = Angles<C>;
  enum Kind { kQueries, kKeys, kValues };
  static constexpr bool kPlacesUnwritten = RopeOperands::Tables::kUnwritten;
  static constexpr int kM = static_cast<int>(params.m);

  const RopeOperands operands;
  int head, pair;  // of all heads, and the first of the pairs
  Kind kind = kQueries;

  RopeColumns(void* const* given, int column)
      : operands(given), head(column / RopeHeads::kD), pair(column % RopeHeads::kD) {
    if (head >= RopeHeads::kHeads) kind = kKeys;
    if (head >= RopeHeads::kHeads + RopeHeads::kKeyHeads) kind = kValues;
  }

  static bool are_aligned(void* const* given) {
    return RopeOperands(given).are_aligned() &&
           (!params.has_bias || is_aligned(given[RopeOperands::kCos - 1], 16));
  }

  // Called by kThreads threads of a block, which `sync` waits for, about rows [first, first +
  // rows): leaves at `kept` the place of each among all rows of all pages, -1 where it goes nowhere
  // or a later row goes there. `places` has room for those of all rows. Other threads than the
  // first of a row see `kept` after another `sync`.
  template <int kThreads, int kMostRows, typename Sync>
  void find_places(int first, int rows, int* places, int* kept, Sync sync) const {
    if (kind == kQueries) return;
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int row = thread; row < kM; row += kThreads) {
      const PagedDestination to = destination(operands.tables, row);
      places[row] = to.page < 0 ? -1 : static_cast<int>(to.page * params.page_tokens + to.row);
    }
    sync();
    constexpr int kEach = sharers(kThreads / kMostRows);  // threads of a row, of one warp
    const int part = thread % kEach;
#pragma unroll 1
    for (int begin = 0; begin < rows; begin += kThreads / kEach) {
      const int own = begin + thread / kEach, row = first + own;
      const int place = own < rows ? places[row] : -1;
      int overtaken = 0;
#pragma unroll 4
      for (int later = row + 1 + part; later < kM; later += kEach) {
        if (places[later] == place) overtaken = 1;
      }
#pragma unroll
      for (int step = kEach / 2; step > 0; step /= 2) {
        overtaken |= __shfl_xor_sync(0xffffffffu, overtaken, step);
      }
      if (part == 0 && own < rows) kept[own] = overtaken ? -1 : place;
    }
  }
  // Says what is outside of the numbers of rows that go nowhere, given the places found: by the
  // threads of the first pairs of keys, of which this is the `line`-th of `lines`.
  void report(int first, int rows, const int* places, int line, int lines) const {
    if (head != RopeHeads::kHeads || pair != 0) return;
#pragma unroll 1
    for (int row = first + line; row < first + rows; row += lines) {
      if (places[row] < 0) report_row(operands.tables, row);
    }
  }
  // The angles of a row, if it exists.
  template <typename Epilogue>
  Angles<C> read(const Epilogue&, int row) const {
    if (kind == kValues || row >= kM) return {};
    return Angles<C>(operands.cos(row) + pair, operands.sin(row) + pair, RopeOperands::kHalf);
  }
  // Stores the pairs of a row, given both halves' sums and where `find_places` left its place.
  template <typename Epilogue>
  float store(const Epilogue& epilogue, int row, const int* kept, const Angles<C>& angles,
              const float (&bias)[2][8], const uint4&, const float (&sums)[2][8]) const {
    const int place = kind == kQueries ? 0 : *kept;
    if (place < 0) return 0.0f;
    const uint4 low = epilogue.rounded(bias[0], sums[0]), high = epilogue.rounded(bias[1], sums[1]);
    T* to = destination_of(row, place);
    if (kind == kValues) {
      *reinterpret_cast<uint4*>(to) = low;
      *reinterpret_cast<uint4*>(to + RopeOperands::kHalf) = high;
      return 0.0f;
    }
    const TurnedEight<T> turned(low, high, angles);
    *reinterpret_cast<uint4*>(to) = turned.first;
    *reinterpret_cast<uint4*>(to + RopeOperands::kHalf) = turned.second;
    return 0.0f;
  }

 private:
  static constexpr int sharers(int most) {
    int each = 32;
    while (each > 1 && each > most) each /= 2;
    return each;
  }
  T* destination_of(int row, int place) const {
    if (kind == kQueries) {
      return operands.tensor(RopeOperands::kY) + row * params.y_strides[1] +
             head * params.y_strides[0] + pair;
    }
    constexpr int kTokens = static_cast<int>(params.page_tokens);
    const PagedDestination at{place / kTokens, place % kTokens};
    const int own = head - RopeHeads::kHeads;
    if (kind == kKeys) return operands.keys(at) + own * params.k_pool_strides[1] + pair;
    return operands.values(at) + (own - RopeHeads::kKeyHeads) * params.v_pool_strides[1] + pair;
  }
};

// Turns, or appends, a head of all rows of the product, which lies in scratch memory, by a block.
inline void run_rope_of_head(void* const* given, int head, int threads) {
  const RopeOperands operands(given);
  const RopeColumns columns(given, head * RopeHeads::kD);
  constexpr int kUnits = RopeOperands::kHalf / 8, kM = RopeColumns::kM;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kM * kUnits; i += threads) {
    const int row = i / kUnits;
    PagedDestination to{-1, 0};
    if (columns.kind != RopeColumns::kQueries) {
      to = destination(operands.tables, row);
      if (to.page < 0 && head == RopeHeads::kHeads && i % kUnits == 0) {
        report_row(operands.tables, row);
      }
      for (int later = row + 1; later < kM && to.page >= 0; ++later) {
        const PagedDestination other = destination(operands.tables, later);
        if (other.page == to.page && other.row == to.row) to.page = -1;
      }
      if (to.page < 0) continue;
    }
    using Units = paged_rope::Units<RopeHeads, 8>;
    const paged_rope::Row from = operands.row(row, to);
    const int own = head - RopeHeads::kHeads, unit = i % kUnits;
    const auto* x = from.q + head * RopeHeads::kD;
    if (columns.kind == RopeColumns::kQueries) {
      Units::turn(x, from.y + head * RopeHeads::kYStride, from.cos, from.sin, unit, from.wide);
    } else if (columns.kind == RopeColumns::kKeys) {
      Units::turn(x, from.keys + own * RopeHeads::kKeysStride, from.cos, from.sin, unit, from.wide);
    } else {
      Units::move(x, from.values + (own - RopeHeads::kKeyHeads) * RopeHeads::kValuesStride, unit,
                  from.wide);
    }
  }
}

#ifdef NPUSIM_ROPE_BLOCK
// Turns and appends a row of the product, which lies in scratch memory, by a block.
inline void run_rope(void* const* given) {
  const RopeOperands operands(given);
  const int64_t at = blockIdx.x;
  const PagedDestination to = kept_destination<NPUSIM_ROPE_BLOCK>(operands.tables, at);
  paged_rope::Units<RopeHeads, 8>::run(operands.row(at, to), to.page >= 0, threadIdx.x,
                                       NPUSIM_ROPE_BLOCK);
}
#endif

}  // namespace npusim
