// Attention over pages on the tensor cores. A block has a row and up to 16 query heads of a
// key/value head, as rows of the tensor core's A, so that heads share what is loaded. It takes
// chunk by chunk; each warp has a unit of a chunk, whose keys and then values it loads in slices,
// NPUSIM_RING ahead; chunks of heads lie on 16 bytes. Up to NPUSIM_SPLIT blocks take turns in the
// chunks of a row; what they leave in scratch memory is folded by the last to finish. A block that
// starts while launches before it run has its first units fetched to L2 meanwhile; with
// NPUSIM_EARLY it loads them, where they lie in pages that this step appends nothing to.
//
// With one or two warps a scheduler, instructions are what takes time: keys that lie one after the
// other are loaded at constant offsets, and a page is looked up a unit before it is used.
#pragma once
#include "kernels/cuda/attention/paged_destination.h"
#include "kernels/cuda/attention/paged_sums.h"
#include "kernels/cuda/attention/warp_tile.h"
#include "kernels/cuda/common/arrival.h"

namespace npusim {

constexpr int kWarps = kChunk / kUnit, kThreads = 32 * kWarps;
static_assert(kThreads == NPUSIM_BLOCK);
constexpr int kRing = NPUSIM_RING, kSplit = NPUSIM_SPLIT, kMostChunks = NPUSIM_MOST_CHUNKS;
constexpr int kHeadTiles = (kGroup + 15) / 16, kHeads = smaller(kGroup, 16);
constexpr int kHalves = kHeads > 8 ? 2 : 1;
constexpr int kSlice = NPUSIM_SLICE, kSlices = kUnit / kSlice;  // of keys, and as many of values
constexpr int kSlot = kSlice * larger(kDLine, kVLine);
constexpr int kFold = NPUSIM_FOLD_COLUMNS, kFoldPitch = kFold + 8;  // avoids bank conflicts
constexpr int kFolds = (kVBlocks * 8 + kFold - 1) / kFold;
constexpr int kEach = (kHeads * kFold + kThreads - 1) / kThreads;  // sums of a thread, each time
constexpr int kRingAt = 16 * kDLine, kSumsAt = kRingAt + kWarps * kRing * kSlot;
constexpr int kTokens = static_cast<int>(params.page_tokens);
constexpr bool kPageHasUnits = kTokens % kUnit == 0;
// A unit is whole rows one after the other.
constexpr bool kContiguous = kPageHasUnits && params.k_strides[2] == kD &&
                             params.v_strides[2] == kV && kD % 8 == 0 && kV % 8 == 0;
constexpr int kPartial = kV + 2;  // floats that a chunk leaves of a head
static_assert(2 * kSlices % kRing == 0);
static_assert(kSumsAt + kWarps * kHeads * kFoldPitch * 4 <= NPUSIM_SHARED);

enum Operands { kQ, kK, kValue, kTables, kY = 6, kScratch };
constexpr int kFailure = kSplit > 1 ? kScratch + 1 : kScratch;
constexpr int kPairs = static_cast<int>(params.length * params.kv_heads) * kHeadTiles;

// Of the pools nothing is written before but rows of this step, in appends at its places.
constexpr bool kLoadsEarly = NPUSIM_EARLY && kPageHasUnits && (unwritten_operands >> kK & 3) == 3 &&
                             PagedTables<kTables>::kUnwritten;

extern __shared__ __align__(128) unsigned char shared_memory[];

unsigned arrived[kSplit > 1 ? kPairs : 1];  // blocks of a row that have finished

// The keys and values of a row, for one key/value head.
struct PagedKeys {
  const PagedTables<kTables>& tables;
  const PagedPlace& at;
  int begin, end;  // that the row sees
  const T *k, *v;

  bool sees(int unit) const { return unit * kUnit < end && (unit + 1) * kUnit > begin; }

  // Called by a warp: fetches a unit to L2 if it is whole rows one after the other.
  void fetch_ahead(int unit) const {
    const int lane = threadIdx.x % 32;
    if (!kContiguous || lane > 1 || !sees(unit)) return;
    const int first = larger(begin, unit * kUnit), last = smaller(end, (unit + 1) * kUnit);
    const int64_t page = tables.known_page(at.request, unit * kUnit / kTokens);
    if (page < 0) return;
    const auto fetch = [&](const T* pool, const int64_t (&strides)[3], int size) {
      prefetch_l2(pool + page * strides[0] + first % kTokens * strides[2],
                  (last - first) * size * static_cast<int>(sizeof(T)));
    };
    if (lane == 0) {
      fetch(k, params.k_strides, kD);
    } else {
      fetch(v, params.v_strides, kV);
    }
  }

  // Called by a warp: tells whether a unit that the row sees lies in a page of the pools which no
  // row of this step is appended to.
  bool is_settled(int unit) const {
    if (!sees(unit)) return false;
    const int64_t page = tables.known_page(at.request, unit * kUnit / kTokens);
    bool grows = page < 0;
#pragma unroll 4
    for (int row = threadIdx.x % 32; row < static_cast<int>(params.length); row += 32) {
      if (destination(tables, row).page == page) grows = true;
    }
    return !__any_sync(0xffffffffu, grows);
  }

  // Starts loading keys, or values, [key, key + kSlice); those that the row does not see are zero.
  template <int kColumns, int kLine>
  void fill(unsigned to, int key, const T* pool, const int64_t (&strides)[3], int64_t page) const {
    if constexpr (kContiguous && 32 % (kColumns / 8) == 0 && kColumns % 64 == 0) {
      const T* from = pool + larger<int64_t>(page, 0) * strides[0] + key % kTokens * kColumns;
      if (key >= begin && key + kSlice <= end && page >= 0) {
        copy_rows<kColumns, false>(to, from, 0, 0);
      } else {
        copy_rows<kColumns, true>(to, from, begin - key, (page >= 0 ? end : begin) - key);
      }
      return;
    }
    constexpr int kChunks = (kColumns + 15) / 16 * 2;
#pragma unroll
    for (int n = 0; n < kSlice * kChunks / 32; ++n) {
      const int i = n * 32 + threadIdx.x % 32, row = i / kChunks, chunk = i % kChunks;
      const int own = key + row;
      bool exists = own >= begin && own < end;
      if (!kPageHasUnits && exists) page = tables.page(at.request, own / kTokens);
      exists = exists && page >= 0 && chunk * 8 < kColumns;
      const T* from = pool;
      if (exists) from += page * strides[0] + own % kTokens * strides[2] + chunk * 8;
      cp_async(to + at_chunk(kLine, row, chunk), from, exists);
    }
  }

 private:
  // The same of a slice at `from`, of which rows [first, last) are seen; or all, unchecked.
  template <int kColumns, bool kChecks>
  static void copy_rows(unsigned to, const T* from, int first, int last) {
    constexpr int kChunks = kColumns / 8, kRows = 32 / kChunks;  // that a warp copies at once
    const int lane = threadIdx.x % 32, own = lane / kChunks;
    const unsigned swizzled = (lane % kChunks ^ own) << 4;
    const unsigned count = larger(last - first, 0);
    first -= own;
    to += own * kColumns * 2;
    from = as_base(from + lane * 8);
#pragma unroll
    for (int n = 0; n < kSlice / kRows; ++n) {
      const int row = n * kRows;
      const unsigned at = to + (swizzled ^ (row & 7) << 4) + row * kColumns * 2;
      if constexpr (kChecks) {
        cp_async(at, from + row * kColumns, static_cast<unsigned>(row - first) < count);
      } else {
        cp_async(at, from + row * kColumns);
      }
    }
  }
};

// A warp's units: of every chunk that its block takes.
struct Feed {
  const PagedKeys& keys;
  unsigned ring;        // of this warp
  int unit, step;       // of the turn that slices are started for, and from one turn to the next
  int64_t page, named;  // of that unit; what the table has for the next one

  Feed(const PagedKeys& keys, unsigned shared, int first, int step)
      : keys(keys),
        ring(shared + kRingAt + threadIdx.x / 32 * kRing * kSlot),
        unit(first - step),
        step(step),
        page(0),
        named(name_of(first)) {}

  unsigned slot(int slice) const { return ring + slice % kRing * kSlot; }

  // Starts loading a slice of the unit; 2 * kSlices is the first of the next one's.
  void start(int slice) {
    if (slice == 2 * kSlices) go_on();
    slice %= 2 * kSlices;
    if (keys.sees(unit)) {
      const int key = unit * kUnit + slice % kSlices * kSlice;
      if (slice < kSlices) {
        keys.fill<kD, kDLine>(slot(slice), key, keys.k, params.k_strides, page);
      } else {
        keys.fill<kV, kVLine>(slot(slice), key, keys.v, params.v_strides, page);
      }
    }
    cp_async_commit();
  }

  // Goes on to the first unit, and starts loading what the ring has room for.
  void fill_ring() {
    go_on();
#pragma unroll
    for (int slice = 0; slice < kRing; ++slice) start(slice);
  }

  // Goes on to the next unit.
  void go_on() {
    unit += step;
    if (!kPageHasUnits) return;
    if (keys.sees(unit)) page = keys.tables.checked(named);
    named = name_of(unit + step);
  }

 private:
  int64_t name_of(int unit) const {
    if (!kPageHasUnits || !keys.sees(unit)) return 0;
    return keys.tables.named(keys.at.request, unit * kUnit / kTokens);
  }
};

// Heads' sums over one unit: the values by weights relative to the unit's greatest score.
struct UnitSums {
  WarpAccumulator<kHalves> values;
  float row_max[kHalves], row_sum[kHalves];

  // Turns dot products into weights. Exactly the same operations for every row.
  void weigh(float (&scores)[kUnit / 8][4], int first_key, int begin, int end) {
    const int before = first_key + static_cast<int>(threadIdx.x) % 4 * 2 - begin;
    const unsigned count = end - begin;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float most = kMasked;
#pragma unroll
      for (int j = 0; j < kUnit / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool sees = static_cast<unsigned>(before + j * 8 + e) < count;
          float& score = scores[j][half * 2 + e];
          score = sees ? paged_score(score) : kMasked;
          most = fmaxf(most, score);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float base = most == kMasked ? 0.0f : most;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kUnit / 8; ++j) {
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) {
          scores[j][e] = fast_exp2(scores[j][e] - base);
          sum += scores[j][e];
        }
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      row_max[half] = most;
      row_sum[half] = sum;
    }
  }

 private:
  // As `scaled`, and never joined with what follows: that would round otherwise here than there.
  static float paged_score(float dot) {
    if constexpr (params.softcap != 0) return scaled(dot);
    return fmaf(dot, kFactor, 0.0f);
  }
};

// Computes a unit, and starts what comes kRing slices after each of its own.
inline void attend_unit(const Queries<(kD <= 128)>& queries, Feed& feed, int unit, UnitSums& sums) {
  if (!feed.keys.sees(unit)) {
#pragma unroll 1
    for (int slice = 0; slice < 2 * kSlices; ++slice) feed.start(slice + kRing);
    return;
  }
  float scores[kUnit / 8][4];
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    cp_async_wait<kRing - 1>();
    __syncwarp();
    float part[kSlice / 8][4];
    queries.dot(feed.slot(slice), 0, part);
#pragma unroll
    for (int e = 0; e < kSlice / 2; ++e) {
      scores[slice * (kSlice / 8) + e / 4][e % 4] = part[e / 4][e % 4];
    }
    __syncwarp();
    feed.start(slice + kRing);
  }
  sums.weigh(scores, unit * kUnit, feed.keys.begin, feed.keys.end);
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    cp_async_wait<kRing - 1>();
    __syncwarp();
    float part[kSlice / 8][4];
#pragma unroll
    for (int e = 0; e < kSlice / 2; ++e) {
      part[e / 4][e % 4] = scores[slice * (kSlice / 8) + e / 4][e % 4];
    }
    sums.values.accumulate_values(part, feed.slot(kSlices + slice), 0);
    __syncwarp();
    feed.start(kSlices + slice + kRing);
  }
}

// A block's rows of sums, folded in order.
struct Folding {
  static constexpr int kAtOnce = kEach > 8 ? 4 : 8;           // chunks that others have left
  static constexpr int kParts = larger(kWarps + 1, kAtOnce);  // the units of a chunk, and the chunk
  struct Weights {
    float units[kWarps][16][2];  // maximum and sum of a unit
    PartFactors by[kParts][16];
    float inverse[16];
  };
  Weights& weights;
  float* sums;                              // in shared memory: [warp][head][kFoldPitch]
  float row_max = kMasked, row_sum = 0.0f;  // of head threadIdx.x, over chunks
  float all[kFolds][kEach];

  Folding(Weights& weights) : weights(weights) {
    sums = reinterpret_cast<float*>(shared_memory + kSumsAt);
#pragma unroll
    for (int n = 0; n < kFolds * kEach; ++n) all[n / kEach][n % kEach] = 0.0f;
  }

  // Calls f(head, column, fold, n) for the elements of this thread in a fold.
  template <typename F>
  static void for_each(int fold, F f) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + static_cast<int>(threadIdx.x);
      const int head = i / kFold, column = fold * kFold + i % kFold;
      if (head < kHeads && column < kV) f(head, column, n);
    }
  }

  // Folds the units of a chunk, and the chunk into those before; or leaves it at `partial`.
  // `seen`: bit w tells that warp w has a unit.
  void add_chunk(const UnitSums& unit, unsigned seen, float* partial) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (lane % 4 == 0) {
        weights.units[warp][lane / 4 + half * 8][0] = unit.row_max[half];
        weights.units[warp][lane / 4 + half * 8][1] = unit.row_sum[half];
      }
    }
#pragma unroll
    for (int fold = 0; fold < kFolds; ++fold) {
      if (fold > 0) __syncthreads();
      put_sums(unit, fold);
      __syncthreads();
      if (fold == 0) {
        if (threadIdx.x < kHeads) fold_heads(seen, partial);
        __syncthreads();
      }
      for_each(fold, [&](int head, int column, int n) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          if (!(seen >> w & 1)) continue;
          const float part = sums[(w * kHeads + head) * kFoldPitch + column % kFold];
          fold_sum(sum, part, weights.by[w][head]);
        }
        if (partial != nullptr) {
          partial[head * kPartial + column] = sum;
        } else {
          fold_sum(all[fold][n], sum, weights.by[kWarps][head]);
        }
      });
    }
  }

  // Folds the chunks that all blocks have left, whose loads are issued several chunks at once.
  void add_partials(const float* partials, int chunks) {
#pragma unroll 1
    for (int first = 0; first < chunks; first += kAtOnce) {
      const int count = smaller(kAtOnce, chunks - first);
      const float* from = partials + static_cast<int64_t>(first) * kHeads * kPartial;
#pragma unroll
      for (int fold = 0; fold < kFolds; ++fold) {
        float parts[kAtOnce][kEach];
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
          if (c >= count) break;
          for_each(fold, [&](int head, int column, int n) {
            parts[c][n] = from[(c * kHeads + head) * kPartial + column];
          });
        }
        if (fold == 0) fold_left_heads(from, count);
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
          if (c >= count) break;
          for_each(fold, [&](int head, int, int n) {
            fold_sum(all[fold][n], parts[c][n], weights.by[c][head]);
          });
        }
      }
    }
  }

  // Divides by the sums of weights.
  void finish() {
    if (threadIdx.x < kHeads) weights.inverse[threadIdx.x] = inverse_sum(row_sum);
    __syncthreads();
#pragma unroll
    for (int fold = 0; fold < kFolds; ++fold) {
      for_each(fold, [&](int head, int, int n) { all[fold][n] *= weights.inverse[head]; });
    }
  }

  void store(T* y, int heads) const {
#pragma unroll
    for (int fold = 0; fold < kFolds; ++fold) {
      for_each(fold, [&](int head, int column, int n) {
        if (head < heads) y[head * params.y_strides[0] + column] = encode<T>(all[fold][n]);
      });
    }
  }

 private:
  void put_sums(const UnitSums& unit, int fold) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int head = lane / 4 + half * 8;
      if (head >= kHeads) continue;
      float* to = sums + (warp * kHeads + head) * kFoldPitch + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kFold / 8; ++j) {
        const int from = fold * (kFold / 8) + j;
        if (from >= kVBlocks) continue;
        to[j * 8] = unit.values.sums[from][half * 2];
        to[j * 8 + 1] = unit.values.sums[from][half * 2 + 1];
      }
    }
  }

  // The factors of `count` chunks that others have left.
  void fold_left_heads(const float* from, int count) {
    float most[kAtOnce], sum[kAtOnce];
    const int head = threadIdx.x;
    if (head < kHeads) {
#pragma unroll
      for (int c = 0; c < kAtOnce; ++c) {
        const float* own = from + (c * kHeads + head) * kPartial + kV;
        most[c] = c < count ? own[0] : kMasked;
        sum[c] = c < count ? own[1] : 0.0f;
      }
    }
    __syncthreads();
    if (head < kHeads) {
#pragma unroll
      for (int c = 0; c < kAtOnce; ++c) {
        if (c >= count) break;
        weights.by[c][head] = fold_weights(row_max, row_sum, most[c], sum[c]);
      }
    }
    __syncthreads();
  }

  void fold_heads(unsigned seen, float* partial) {
    const int head = threadIdx.x;
    float most = kMasked, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (!(seen >> w & 1)) continue;
      const float* part = weights.units[w][head];
      weights.by[w][head] = fold_weights(most, sum, part[0], part[1]);
    }
    if (partial != nullptr) {
      partial[head * kPartial + kV] = most;
      partial[head * kPartial + kV + 1] = sum;
    } else {
      weights.by[kWarps][head] = fold_weights(row_max, row_sum, most, sum);
    }
  }
};

inline void run(void* const* operands) {
  using Tables = PagedTables<kTables>;
  if constexpr (!Tables::kUnwritten) wait_on_dependencies();
  const Tables tables(operands, kFailure);
  const int64_t row = blockIdx.x, kv_head = blockIdx.y / kHeadTiles;
  const int first_head = static_cast<int>(blockIdx.y) % kHeadTiles * 16;
  const int heads = smaller(kHeads, kGroup - first_head);
  const int64_t head = kv_head * kGroup + first_head;
  const PagedPlace at = tables.place(row);
  const PagedKeys keys{tables,
                       at,
                       static_cast<int>(at.begin(params.window)),
                       static_cast<int>(at.end()),
                       static_cast<const T*>(operands[kK]) + kv_head * params.k_strides[1],
                       static_cast<const T*>(operands[kValue]) + kv_head * params.v_strides[1]};
  const int first = keys.begin / kChunk, last = (keys.end + kChunk - 1) / kChunk;
  const int blocks = smaller(kSplit, larger(last - first, 1)), block = blockIdx.z;
  const int warp = threadIdx.x / 32;
  int unit = (first + block) * kWarps + warp;
  const int step = blocks * kWarps;
  const unsigned shared = shared_address(shared_memory);
  Feed feed(keys, shared, unit, step);
  bool early = false;
  if constexpr (Tables::kUnwritten) {
    if constexpr (kLoadsEarly) early = block < blocks && keys.is_settled(unit);
    if (early) {
      feed.fill_ring();
    } else if (block < blocks) {
      keys.fetch_ahead(unit);
    }
    wait_on_dependencies();
  }
  if (at.request != -1 && !at.exists) {
    if (threadIdx.x == 0 && blockIdx.z == 0) tables.report_place(at);
    return;
  }
  if (block >= blocks) return;

  __shared__ Folding::Weights weights;
  const T* q =
      static_cast<const T*>(operands[kQ]) + head * params.q_strides[0] + row * params.q_strides[1];
  constexpr int kChunks = (kD + 15) / 16 * 2;
  for (int i = threadIdx.x; i < 16 * kChunks; i += kThreads) {
    const int h = i / kChunks, chunk = i % kChunks;
    const bool exists = h < heads && chunk * 8 < kD;
    const T* from = q + (exists ? h * params.q_strides[0] + chunk * 8 : 0);
    cp_async(shared + at_chunk(kDLine, h, chunk), from, exists);
  }
  cp_async_commit();
  if (early) {
    cp_async_wait<0>();
  } else {
    feed.fill_ring();
    cp_async_wait<kRing>();
  }
  __syncthreads();
  Queries<(kD <= 128)> queries{shared, {}};
  queries.keep();

  Folding folding(weights);
  const int64_t pair = row * gridDim.y + blockIdx.y;
  float* partials =
      kSplit > 1 ? static_cast<float*>(operands[kScratch]) + pair * kMostChunks * kHeads * kPartial
                 : nullptr;
#pragma unroll 1
  for (int chunk = first + block; chunk < last; chunk += blocks, unit += step) {
    UnitSums sums;
    attend_unit(queries, feed, unit, sums);
    unsigned seen = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) seen |= keys.sees(chunk * kWarps + w) ? 1u << w : 0u;
    const int64_t place = static_cast<int64_t>(chunk - first) * kHeads * kPartial;
    folding.add_chunk(sums, seen, kSplit > 1 && blocks > 1 ? partials + place : nullptr);
  }
  cp_async_wait<0>();
  if (kSplit > 1 && blocks > 1) {
    if (!arrives_last(arrived[kSplit > 1 ? pair : 0], blocks)) return;
    folding.add_partials(partials, last - first);
  }
  folding.finish();
  T* y = static_cast<T*>(operands[kY]) + head * params.y_strides[0] + row * params.y_strides[1];
  folding.store(y, heads);
}

}  // namespace npusim
