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
constexpr uint32_t kLong = NPUSIM_LONG;    // items of a run, above which a block takes it
constexpr int64_t kColumns = NPUSIM_COLUMNS, kTiles = (kItems + kTile - 1) / kTile;

// Scratch memory: which pass it is, how many runs are long, counts of digits, and items by key,
// before a pass and after it. When all is sorted, what was before holds where long runs begin.
struct Sorting {
  uint32_t* words;

  uint32_t& pass() const { return words[0]; }
  uint32_t& long_runs() const { return words[1]; }
  uint32_t* starts() const { return keys(NPUSIM_PASSES + 1); }
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
  // Returns whether a long run begins there, which is left to a block.
  bool visit(uint32_t i) const {
    const uint32_t key = keys[i];
    if (key == kKeys) return false;
    if constexpr (params.mode == kSet) {
      if (i + 1 < kItems && keys[i + 1] == key) return false;
      y[static_cast<int64_t>(key) * NPUSIM_KEY_STEP] = src[offset_in_src(items[i])];
    } else if (i == 0 || keys[i - 1] != key) {
      if (kItems - i > kLong && keys[i + kLong] == key) return true;
      fold(i, key);
    }
    return false;
  }
};

inline Column column_of(int64_t column, Arguments operands) {
  const Sorting sorting = sorting_of(operands);
  Cursor across;
  seek<NPUSIM_APART>(across, column);
  return {static_cast<const T*>(operands[0]) + across.dense,
          static_cast<T*>(operands[1 + kIndices]) + across.indexed, sorting.keys(NPUSIM_PASSES),
          sorting.items(NPUSIM_PASSES)};
}

// Some columns of a long run, by a block: all its threads load what the first ones, one a column,
// combine in order, and the next while they do; where those lie is known a stage before.
struct LongRun {
  static constexpr int kWide = kColumns < NPUSIM_WIDE ? kColumns : NPUSIM_WIDE;
  static constexpr int kHigh = NPUSIM_BLOCK / kWide;
  static constexpr int kLoads = sizeof(T) > 4 ? 8 : 16;  // of a thread, for a stage
  static constexpr int kRows = kHigh * kLoads;
  struct Stage {
    T rows[kRows][kWide];
    int count;  // of rows that there are
  };

  Column column;  // a thread's loads are all of one
  uint32_t key;
  int wide, high;
  bool exists;  // whether there is this column
  T loaded[kLoads];
  uint32_t items[kLoads];      // that are loaded next
  unsigned found, next_found;  // bit e: whether `loaded` and `items` are of the run

  bool is_of_run(int64_t i) const { return i < kItems && column.keys[i] == key; }
  bool is_found(int e) const { return found >> e & 1; }

  // Without a branch between them, so that all are on their way at once: items that are not of the
  // run, and the last one for those beyond it, are read in vain.
  void find(int64_t first) {
    next_found = 0;
#pragma unroll
    for (int e = 0; e < kLoads; ++e) {
      const int64_t i = first + e * kHigh + high, last = kItems - 1;
      const int64_t at = i < last ? i : last;
      const bool is_one = (high < kHigh) & (i <= last) & (column.keys[at] == key);
      next_found |= static_cast<unsigned>(is_one) << e;
      items[e] = column.items[at];
    }
  }
  void load() {
    found = next_found;
#pragma unroll
    for (int e = 0; e < kLoads; ++e) loaded[e] = column.src[offset_in_src(items[e])];
  }

  // Keeps what was loaded; the thread of the last row says how many there are.
  void store(Stage& stage, int64_t first) const {
#pragma unroll
    for (int e = 0; e < kLoads; ++e) {
      const int row = e * kHigh + high;
      if (is_found(e) && exists) stage.rows[row][wide] = loaded[e];
      if (wide != 0) continue;
      if (row == 0 && !is_found(e)) stage.count = 0;
      if (is_found(e) && (row + 1 == kRows || !is_of_run(first + row + 1))) stage.count = row + 1;
    }
  }

  // Rows that follow come from shared memory while some are combined: the chain of additions is
  // all that takes time.
  T combined(T value, const Stage& stage, int count) const {
    T given[kLoads], next[kLoads];
    const auto rows_from = [&](int row, T(&into)[kLoads]) {
#pragma unroll
      for (int e = 0; e < kLoads; ++e) into[e] = stage.rows[row + e][wide];
    };
    rows_from(0, next);
    int row = 0;
    for (; row + kLoads <= count; row += kLoads) {
#pragma unroll
      for (int e = 0; e < kLoads; ++e) given[e] = next[e];
      rows_from(row + kLoads < kRows ? row + kLoads : 0, next);
#pragma unroll
      for (int e = 0; e < kLoads; ++e) value = combine(value, given[e]);
    }
    for (; row < count; ++row) value = combine(value, stage.rows[row][wide]);
    return value;
  }

  void fold(int64_t start) {
    __shared__ Stage stages[2];
    const bool combines = high == 0 && exists;
    T* const to = column.y + static_cast<int64_t>(key) * NPUSIM_KEY_STEP;
    T value = *to;
    find(start);
    load();
    find(start + kRows);
    store(stages[0], start);
    for (int turn = 0;; turn ^= 1) {
      __syncthreads();
      const int count = stages[turn].count;
      start += kRows;
      if (count == kRows) {
        load();
        find(start + kRows);
      }
      if (combines) value = combined(value, stages[turn], count);
      if (count < kRows) break;
      store(stages[turn ^ 1], start);
    }
    if (combines) *to = value;
    __syncthreads();
  }
};

inline void fold_long(int64_t start, int64_t first_column, Arguments operands) {
  const int wide = threadIdx.x % LongRun::kWide, high = threadIdx.x / LongRun::kWide;
  const bool exists = first_column + wide < kColumns;
  LongRun run{column_of(exists ? first_column + wide : 0, operands), 0, wide, high, exists};
  run.key = run.column.keys[start];
  run.fold(start);
}

}  // namespace npusim

NPUSIM_ENTRY {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  const Sorting sorting = sorting_of(operands);
  const int64_t first = int64_t{blockIdx.x} * kTile;
  if (blockIdx.x == 0 && threadIdx.x == 0) sorting.pass() = sorting.long_runs() = 0;
  uint32_t keys[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int64_t item = first + place_in_tile(e);
    keys[e] = item < kItems ? key_of(static_cast<uint32_t>(item), operands) : 0;
    if (kTiles > 1 && item < kItems) sorting.keys(0)[item] = keys[e];
  }
  if constexpr (kTiles == 1) {
    uint32_t items[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) items[e] = static_cast<uint32_t>(place_in_tile(e));
    sort_tile(keys, items, kItems, NPUSIM_PASSES);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int64_t place = place_in_tile(e);
      if (place >= kItems) continue;
      sorting.keys(NPUSIM_PASSES)[place] = keys[e];
      sorting.items(NPUSIM_PASSES)[place] = items[e];
    }
  } else {
    sorting.counts().count(
        blockIdx.x, 0, [&](int e) { return keys[e]; },
        [&](int e) { return first + place_in_tile(e) < kItems; });
  }
}

#if NPUSIM_ITEMS > NPUSIM_TILE
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

#endif

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_fold(NPUSIM_SIGNATURE) {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  const Sorting sorting = sorting_of(operands);
  const int64_t first = NPUSIM_ITEM / kColumns * NPUSIM_SPAN;
  const int64_t last = first + NPUSIM_SPAN < kItems ? first + NPUSIM_SPAN : kItems;
  const int64_t number = NPUSIM_ITEM % kColumns;
  const Column column = column_of(number, operands);
  for (int64_t i = first; i < last; ++i) {
    const bool is_long = column.visit(static_cast<uint32_t>(i));
    if (is_long && number == 0) {
      sorting.starts()[atomicAdd(&sorting.long_runs(), 1U)] = static_cast<uint32_t>(i);
    }
  }
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_fold_long(NPUSIM_SIGNATURE) {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  const Sorting sorting = sorting_of(operands);
  constexpr int64_t kParts = (kColumns + LongRun::kWide - 1) / LongRun::kWide;
  const int64_t units = sorting.long_runs() * kParts;
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    fold_long(sorting.starts()[unit / kParts], unit % kParts * LongRun::kWide, operands);
  }
}

#endif
