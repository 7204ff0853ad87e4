// The k first of a stable sort along the middle of a dense [outer, size, inner], in one of four
// ways that give the same result (codegen/cuda/sorts.py chooses). Elements become unsigned keys
// whose order is the one asked for: NaN largest, -0 equal to 0, inverted when descending.
// NPUSIM_WAY 0: a block sorts a short lane in shared memory. 1: rounds, of which each keeps the k
// first of each tile of a lane. 2: all of a lane is sorted, digit by digit. 3: a warp keeps the 32
// first of what it has seen of a lane, for k up to as many.
#include "kernels/cuda/common/scalar.h"
#if NPUSIM_WAY == 1 || NPUSIM_WAY == 2
#include "kernels/cuda/common/radix.h"
#endif

namespace npusim {

using X = Storage<params.dtype>;
using Key = typename BitsOf<sizeof(X)>::type;
constexpr bool kIsFloat = params.dtype < 4, kIsSigned = params.dtype < 8;  // codes of dtypes
constexpr int kSignBit = static_cast<int>(sizeof(Key)) * 8 - 1;
constexpr Key kSign = static_cast<Key>(uint64_t{1} << kSignBit);
constexpr int64_t kLanes = params.outer * params.inner;

constexpr Key infinity_bits() {
  constexpr uint64_t of_dtype[] = {0x7f800000, 0x7c00, 0x7f80, 0x7ff0000000000000};
  return static_cast<Key>(of_dtype[kIsFloat ? params.dtype : 0]);
}

// Positive numbers order as their bits do, negative ones backwards. Of bits alone: the smallest
// numbers are none.
inline Key rising_key(const X& x) {
  if constexpr (kIsFloat) {
    const Key bits = __builtin_bit_cast(Key, x), size = bits & static_cast<Key>(~kSign);
    if (size > infinity_bits()) return static_cast<Key>(~Key{0});
    if (size == 0) return kSign;
    return static_cast<Key>(bits & kSign ? ~bits : bits | kSign);
  } else {
    return static_cast<Key>(decode<int64_t>(x)) ^ (kIsSigned ? kSign : Key{0});
  }
}
inline Key key_of(const X& x) {
  const Key key = rising_key(x);
  return params.descending ? static_cast<Key>(~key) : key;
}

// A lane of x and of the results.
struct Lane {
  const X* x;
  X* values;
  int64_t* indices;

  Key key(int64_t i) const { return key_of(x[i * params.inner]); }
  void give(int64_t place, int64_t position) const {
    values[place * params.inner] = x[position * params.inner];
    indices[place * params.inner] = position;
  }
};
inline Lane lane_of(int64_t lane, const void* x, void* values, void* indices) {
  const int64_t outer = lane / params.inner, column = lane % params.inner;
  const int64_t in = outer * params.size * params.inner + column;
  const int64_t out = outer * params.k * params.inner + column;
  return {static_cast<const X*>(x) + in, static_cast<X*>(values) + out,
          static_cast<int64_t*>(indices) + out};
}

}  // namespace npusim

#if NPUSIM_WAY == 0

namespace npusim {

// Keys and positions of a lane, padded to NPUSIM_WIDTH. A key with its position is unique, so the
// bitonic network is stable (Batcher, "Sorting networks and their applications", 1968).
struct Items {
  Key keys[NPUSIM_WIDTH];
  int32_t positions[NPUSIM_WIDTH];

  bool is_after(int a, int b) const {
    return keys[a] > keys[b] || (keys[a] == keys[b] && positions[a] > positions[b]);
  }
  void swap(int a, int b) {
    const Key key = keys[a];
    const int32_t position = positions[a];
    keys[a] = keys[b];
    positions[a] = positions[b];
    keys[b] = key;
    positions[b] = position;
  }
};

inline void bitonic_sort(Items& items) {
  constexpr int kWidth = NPUSIM_WIDTH;
  for (int run = 2; run <= kWidth; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < kWidth / 2; pair += NPUSIM_BLOCK) {
        const int a = pair / step * 2 * step + pair % step, b = a + step;
        const bool up = (a & run) == 0;
        if (items.is_after(a, b) == up) items.swap(a, b);
      }
    }
  }
  __syncthreads();
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void* values, void* indices) {
  using namespace npusim;
  __shared__ Items items;
  const Lane lane = lane_of(blockIdx.x, x, values, indices);
  for (int i = threadIdx.x; i < NPUSIM_WIDTH; i += NPUSIM_BLOCK) {
    items.keys[i] = i < params.size ? lane.key(i) : static_cast<Key>(~Key{0});
    items.positions[i] = i;
  }
  bitonic_sort(items);
  for (int i = threadIdx.x; i < params.k; i += NPUSIM_BLOCK) lane.give(i, items.positions[i]);
}

#elif NPUSIM_WAY == 3

namespace npusim {

// A key and its position, which together are unique.
struct Item {
  Key key;
  int32_t position;

  bool is_before(const Item& other) const {
    return key < other.key || (key == other.key && position < other.position);
  }
};

inline Item from_lane(const Item& item, int lane) {
  return {static_cast<Key>(__shfl_sync(0xffffffffU, item.key, lane)),
          __shfl_sync(0xffffffffU, item.position, lane)};
}

// The item of this lane after a step of a bitonic network: the first of two, or the last.
inline Item exchanged(const Item& own, int step, bool first) {
  const Item other = from_lane(own, (threadIdx.x % 32) ^ step);
  return other.is_before(own) == first ? other : own;
}
// Sorts the items of a warp, of which runs of `run` / 2 are sorted up and down by turns.
inline Item merged(Item own, int run) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (step < run) own = exchanged(own, step, ((lane & step) == 0) == ((lane & run) == 0));
  }
  return own;
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void* values, void* indices) {
  using namespace npusim;
  const int lane = threadIdx.x % 32;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (NPUSIM_BLOCK / 32) + threadIdx.x / 32;
  if (warp >= kLanes) return;  // all lanes of the warp
  const Lane row = lane_of(warp, x, values, indices);
  const Item none = {static_cast<Key>(~Key{0}), 0x7fffffff};  // behind all items
  Item best = none;
  for (int64_t at = 0; at < params.size; at += 32) {
    const bool exists = at + lane < params.size;
    Item item = none;
    if (exists) item = {row.key(at + lane), static_cast<int32_t>(at + lane)};
    const Item last = from_lane(best, static_cast<int>(params.k) - 1);
    if (!__any_sync(0xffffffffU, item.is_before(last))) continue;
#pragma unroll
    for (int run = 2; run <= 32; run *= 2) item = merged(item, run);
    const Item other = from_lane(item, 31 - lane);  // the least against the greatest
    best = merged(other.is_before(best) ? other : best, 32);
  }
  if (lane < params.k) row.give(lane, best.position);
}

#elif NPUSIM_WAY == 1

namespace npusim {

constexpr int kPasses = sizeof(Key);

constexpr int64_t tiles_of(int64_t count) {
  return (count + kTile - 1) / kTile;
}
// Candidates of a lane that are left of `count`: the k first of each tile.
constexpr int64_t left_of(int64_t count) {
  const int64_t rest = count - (tiles_of(count) - 1) * kTile;
  return (tiles_of(count) - 1) * params.k + (rest < params.k ? rest : params.k);
}
constexpr int64_t kLeft = left_of(params.size);  // by the first round

// A round is known by its grid, since each has fewer tiles.
struct Round {
  int64_t count = params.size;  // candidates of a lane
  int number = 0;

  static Round of(int64_t blocks) {
    Round round;
    while (tiles_of(round.count) * kLanes != blocks) {
      round.count = left_of(round.count);
      ++round.number;
    }
    return round;
  }
};

// Candidates that a round leaves to the next, by lane: in the order of x where keys are equal.
struct Candidates {
  Key* keys;
  uint32_t* positions;
};
inline Candidates candidates_of(int round, int64_t lane, void* scratch) {
  constexpr int64_t kAll = kLanes * kLeft;
  auto* const positions = static_cast<uint32_t*>(scratch) + (2 * kAll * sizeof(Key) + 3) / 4;
  const int64_t first = round % 2 * kAll + lane * kLeft;
  return {static_cast<Key*>(scratch) + first, positions + first};
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void* values, void* indices, void* scratch) {
  using namespace npusim;
  const Round round = Round::of(gridDim.x);
  const int64_t tiles = tiles_of(round.count), number = blockIdx.x / tiles;
  const int64_t tile = blockIdx.x % tiles, first = tile * kTile;
  const Lane lane = lane_of(number, x, values, indices);
  const Candidates from = candidates_of(round.number + 1, number, scratch);
  const Candidates to = candidates_of(round.number, number, scratch);
  const int size = static_cast<int>(round.count - first < kTile ? round.count - first : kTile);
  Key keys[kEach];
  uint32_t positions[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t i = first + place_in_tile(e);
    const bool exists = place_in_tile(e) < size;
    positions[e] = static_cast<uint32_t>(i);
    keys[e] = exists && round.number == 0 ? lane.key(i) : Key{0};
    if (!exists || round.number == 0) continue;
    positions[e] = from.positions[i];
    keys[e] = from.keys[i];
  }
  sort_tile(keys, positions, size, kPasses);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t place = place_in_tile(e);
    if (place >= size || place >= params.k) continue;
    if (tiles == 1) {
      lane.give(place, positions[e]);
    } else {
      to.keys[tile * params.k + place] = keys[e];
      to.positions[tile * params.k + place] = positions[e];
    }
  }
}

#else

namespace npusim {

constexpr int kPasses = sizeof(Key);
constexpr int64_t kTiles = (params.size + kTile - 1) / kTile, kAll = kLanes * params.size;

// Scratch memory: keys of all lanes before a pass and after it, positions alike, which pass it is,
// and counts of each lane.
struct Sorting {
  void* scratch;
  int64_t lane;

  Key* keys(int pass) const {
    return static_cast<Key*>(scratch) + pass % 2 * kAll + lane * params.size;
  }
  uint32_t* words() const {
    return static_cast<uint32_t*>(scratch) + (2 * kAll * sizeof(Key) + 3) / 4;
  }
  uint32_t* positions(int pass) const { return words() + pass % 2 * kAll + lane * params.size; }
  uint32_t& pass() const { return words()[2 * kAll]; }
  DigitCounts counts() const {
    uint32_t* const mine = words() + 2 * kAll + 1 + lane * kDigits * (kTiles + 1);
    return {mine + kDigits, mine, kTiles};
  }
};

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void* values, void* indices, void* scratch) {
  using namespace npusim;
  const Sorting sorting{scratch, blockIdx.x / kTiles};
  const Lane lane = lane_of(sorting.lane, x, values, indices);
  const int64_t tile = blockIdx.x % kTiles, first = tile * kTile;
  if (blockIdx.x == 0 && threadIdx.x == 0) sorting.pass() = 0;
  Key keys[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t i = first + place_in_tile(e);
    keys[e] = i < params.size ? lane.key(i) : Key{0};
    if (i < params.size) sorting.keys(0)[i] = keys[e];
  }
  sorting.counts().count(
      tile, 0, [&](int e) { return keys[e]; },
      [&](int e) { return first + place_in_tile(e) < params.size; });
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_count(const void*, void*, void*, void* scratch) {
  using namespace npusim;
  const Sorting sorting{scratch, blockIdx.x / kTiles};
  const int64_t tile = blockIdx.x % kTiles, first = tile * kTile;
  const int pass = static_cast<int>(sorting.pass());
  const Key* keys = sorting.keys(pass);
  sorting.counts().count(
      tile, pass, [&](int e) { return keys[first + place_in_tile(e)]; },
      [&](int e) { return first + place_in_tile(e) < params.size; });
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_scan(const void*, void*, void*, void* scratch) {
  using namespace npusim;
  constexpr int kBlocks = NPUSIM_SCANNERS;  // of a lane
  const Sorting sorting{scratch, blockIdx.x / kBlocks};
  if constexpr (kBlocks == 1) {
    sorting.counts().scan_all();
  } else {
    sorting.counts().scan(static_cast<int>(blockIdx.x % kBlocks));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) ++sorting.pass();
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_move(const void*, void*, void*, void* scratch) {
  using namespace npusim;
  const Sorting sorting{scratch, blockIdx.x / kTiles};
  const int pass = static_cast<int>(sorting.pass()) - 1;
  move_tile(sorting.counts(), blockIdx.x % kTiles, params.size, pass, sorting.keys(pass),
            pass == 0 ? nullptr : sorting.positions(pass), sorting.keys(pass + 1),
            sorting.positions(pass + 1));
}

// Neighbours give neighbouring results.
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_give(const void* x, void* values, void* indices, void* scratch) {
  using namespace npusim;
  const int64_t i = int64_t{blockIdx.x} * NPUSIM_BLOCK + threadIdx.x;
  if (i >= kLanes * params.k) return;
  const int64_t outer = i / (params.k * params.inner), place = i / params.inner % params.k;
  const int64_t number = outer * params.inner + i % params.inner;
  const Sorting sorting{scratch, number};
  lane_of(number, x, values, indices).give(place, sorting.positions(kPasses)[place]);
}

#endif
