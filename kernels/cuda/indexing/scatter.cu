// scatter on CUDA, in one of three ways that give the same bits (codegen/cuda/scatter.py chooses).
// NPUSIM_WAY 0: the walk. 1: atomic operations, where no order of integers shows. 2: items are
// sorted by where they go, and threads take runs of one destination, from the first item on.
#include "kernels/cuda/common/entry.h"
#include "kernels/gpu/indexing/scatter.h"

#if NPUSIM_WAY == 0

#include "kernels/gpu/indexing/scatter_walk.h"

NPUSIM_ENTRY {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::scatter_walk(NPUSIM_ITEM, operands);
}

#elif NPUSIM_WAY == 1

namespace npusim {

// Integers wrap, so that sums are the same in any order, as extremes are.
inline void update(T* y, T given) {
  using Signed = int64_t;
  if constexpr (kSame<T, Signed>) {
    if constexpr (params.mode == kAdd) {
      atomicAdd(reinterpret_cast<unsigned long long*>(y), static_cast<unsigned long long>(given));
    } else if constexpr (params.mode == kMax) {
      atomicMax(reinterpret_cast<long long*>(y), static_cast<long long>(given));
    } else {
      atomicMin(reinterpret_cast<long long*>(y), static_cast<long long>(given));
    }
  } else if constexpr (kSame<T, int32_t>) {
    if constexpr (params.mode == kAdd) {
      atomicAdd(reinterpret_cast<unsigned*>(y), static_cast<unsigned>(given));
    } else if constexpr (params.mode == kMax) {
      atomicMax(y, given);
    } else {
      atomicMin(y, given);
    }
  }
}

}  // namespace npusim

NPUSIM_ENTRY {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  if (NPUSIM_ITEM >= NPUSIM_ITEMS) return;
  Cursor at;
  seek<~0>(at, NPUSIM_ITEM);
  if (!resolve(at, operands)) return;
  update(static_cast<T*>(operands[1 + kIndices]) + at.indexed,
         static_cast<const T*>(operands[0])[at.dense]);
}

#else

#include "kernels/cuda/common/radix.h"

namespace npusim {

constexpr uint32_t kItems = NPUSIM_ITEMS;  // items but for the columns, along which none meet
constexpr uint32_t kKeys = NPUSIM_KEYS;    // places in y, NPUSIM_KEY_STEP apart
constexpr int64_t kColumns = NPUSIM_COLUMNS, kTiles = (kItems + kTile - 1) / kTile;

// Scratch memory: which pass it is, counts, and items by key, before a pass and after it.
struct Sorting {
  uint32_t* words;

  uint32_t& pass() const { return words[0]; }
  DigitCounts counts() const { return {words + 64 + kDigits, words + 64, kTiles}; }
  uint32_t* keys(int pass) const {
    return words + 64 + kDigits + kDigits * kTiles + pass % 2 * 2 * int64_t{kItems};
  }
  uint32_t* items(int pass) const { return keys(pass) + kItems; }
};
inline Sorting sorting_of(Arguments operands) {
  return {static_cast<uint32_t*>(operands[NPUSIM_ARGUMENTS - 2])};
}

// Where an item goes; kKeys: nowhere.
inline uint32_t key_of(uint32_t item, Arguments operands) {
  Cursor at;
  seek<~NPUSIM_APART>(at, item);
  return resolve(at, operands) ? static_cast<uint32_t>(at.indexed / NPUSIM_KEY_STEP) : kKeys;
}
inline int64_t offset_in_src(uint32_t item) {
  Cursor at;
  seek<~NPUSIM_APART>(at, item);
  return at.dense;
}

// A column of src and y, and the sorted items.
struct Column {
  const T* src;
  T* y;
  const uint32_t* keys;
  const uint32_t* items;

  // Combines a run of one key that begins at `i`, several loads at a time.
  void fold(uint32_t i, uint32_t key) const {
    constexpr int kLoads = 8;
    T* const to = y + static_cast<int64_t>(key) * NPUSIM_KEY_STEP;
    T value = *to;
    for (bool more = true; more; i += kLoads) {
      uint32_t found[kLoads];
      T given[kLoads];
      bool mine[kLoads];
#pragma unroll
      for (int b = 0; b < kLoads; ++b) {
        const uint32_t at = i + b < kItems ? i + b : kItems - 1;
        mine[b] = i + b < kItems && keys[at] == key;
        found[b] = items[at];
      }
#pragma unroll
      for (int b = 0; b < kLoads; ++b) {
        if (mine[b]) given[b] = src[offset_in_src(found[b])];
      }
#pragma unroll
      for (int b = 0; b < kLoads; ++b) {
        if (mine[b]) value = combine(value, given[b]);
      }
      more = mine[kLoads - 1];
    }
    *to = value;
  }

  // What sorted item `i` leads to: the last of a run is what is set, the first begins a sum.
  void visit(uint32_t i) const {
    const uint32_t key = keys[i];
    if (key == kKeys) return;
    if constexpr (params.mode == kSet) {
      if (i + 1 < kItems && keys[i + 1] == key) return;
      y[static_cast<int64_t>(key) * NPUSIM_KEY_STEP] = src[offset_in_src(items[i])];
    } else if (i == 0 || keys[i - 1] != key) {
      fold(i, key);
    }
  }
};

}  // namespace npusim

NPUSIM_ENTRY {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  const Sorting sorting = sorting_of(operands);
  const int64_t first = int64_t{blockIdx.x} * kTile;
  if (blockIdx.x == 0 && threadIdx.x == 0) sorting.pass() = 0;
  uint32_t* const to = sorting.keys(0);
  uint32_t keys[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t item = first + place_in_tile(e);
    keys[e] = item < kItems ? key_of(static_cast<uint32_t>(item), operands) : 0;
    if (item < kItems) to[item] = keys[e];
  }
  sorting.counts().count(
      blockIdx.x, 0, [&](int e) { return keys[e]; },
      [&](int e) { return first + place_in_tile(e) < kItems; });
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_count(NPUSIM_SIGNATURE) {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  const Sorting sorting = sorting_of(operands);
  const int64_t first = int64_t{blockIdx.x} * kTile;
  const int pass = static_cast<int>(sorting.pass());
  const uint32_t* keys = sorting.keys(pass);
  sorting.counts().count(
      blockIdx.x, pass, [&](int e) { return keys[first + place_in_tile(e)]; },
      [&](int e) { return first + place_in_tile(e) < kItems; });
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_scan(NPUSIM_SIGNATURE) {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  const Sorting sorting = sorting_of(operands);
  sorting.counts().scan(static_cast<int>(blockIdx.x));
  if (blockIdx.x == 0 && threadIdx.x == 0) ++sorting.pass();
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_move(NPUSIM_SIGNATURE) {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  const Sorting sorting = sorting_of(operands);
  const int pass = static_cast<int>(sorting.pass()) - 1;
  move_tile(sorting.counts(), blockIdx.x, kItems, pass, sorting.keys(pass),
            pass == 0 ? nullptr : sorting.items(pass), sorting.keys(pass + 1),
            sorting.items(pass + 1));
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_fold(NPUSIM_SIGNATURE) {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  const Sorting sorting = sorting_of(operands);
  const int64_t first = NPUSIM_ITEM / kColumns * NPUSIM_SPAN;
  const int64_t last = first + NPUSIM_SPAN < kItems ? first + NPUSIM_SPAN : kItems;
  Cursor across;
  seek<NPUSIM_APART>(across, NPUSIM_ITEM % kColumns);
  const Column column{static_cast<const T*>(operands[0]) + across.dense,
                      static_cast<T*>(operands[1 + kIndices]) + across.indexed,
                      sorting.keys(NPUSIM_PASSES), sorting.items(NPUSIM_PASSES)};
  for (int64_t i = first; i < last; ++i) column.visit(static_cast<uint32_t>(i));
}

#endif
