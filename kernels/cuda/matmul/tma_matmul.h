// Products of many rows on Hopper: one warp of a block has boxes of x and W copied to a ring in
// shared memory, the other warps multiply them, a warpgroup 64 rows of a tile. Included behind
// linear_tile.h, whose Tile does the work elsewhere and where operands lie badly.
//
// The blocks of a cluster work together in two ways. NPUSIM_SHARE_ROWS blocks with rows of x of
// their own take the same rows of W, NPUSIM_SHARE_COLUMNS blocks the same rows of x: each copies a
// part for all of them. And NPUSIM_SPANS blocks cut K: each sends its sums to the block that
// finishes the rows, which adds them up in order. Blocks without a cluster may take one tile after
// the other (NPUSIM_TILES): the ring is filled for the next one while a tile is finished.
#pragma once
#include "kernels/cuda/common/tma.h"

namespace npusim {

constexpr int kColumns = NPUSIM_BULK_COLUMNS;      // rows of W
constexpr int kSharers = NPUSIM_SHARE_ROWS;        // blocks that multiply the same rows of W
constexpr int kNeighbours = NPUSIM_SHARE_COLUMNS;  // blocks that multiply the same rows of x
constexpr int kSpans = NPUSIM_SPANS;               // of K
constexpr int kCluster = kSharers * kNeighbours * kSpans;
static_assert(NPUSIM_TILES == 0 || kCluster == 1);
constexpr int kRing = NPUSIM_RING, kStageBytes = (kTileRows + kColumns) * 128;
constexpr int kXBytes = kTileRows * 128;
constexpr int kBarriersAt = kRing * kStageBytes;  // [stage]: filled, then [stage]: free
constexpr int kWorkers = kTileRows / 16;          // warps that multiply
constexpr int kBlocksOfK = static_cast<int>(ceil_div(params.k, 64));
constexpr int kLine = kColumns + (kColumns % 16 == 0 ? 8 : 0);  // of sums, for banks of their own

// So few rows that a block of W takes longer to come than to be multiplied: memory is what counts.
constexpr bool kFewRows = params.m <= 128;
// Then a stage is free as soon as it is multiplied; elsewhere products follow without a pause.
constexpr int kHeld = kFewRows ? 0 : 1;  // blocks of K in a warp's hands behind the newest
// Blocks of W that are asked for before x. Copies come in order, and x waits behind them.
constexpr int kAhead = kFewRows ? smaller(kRing, 3) : kRing;
// What one block or cluster reads, and nobody again, makes room for what several read.
constexpr bool kReadOnce = params.m <= kTileRows * kSharers;

// W comes in boxes, each of one part.
constexpr int kBoxes = larger(kSharers, kParts);
constexpr int kBoxRows = kColumns / kBoxes, kXBoxRows = kTileRows / kNeighbours;
static_assert(kBoxes % kSharers == 0 && kBoxRows % 8 == 0 && kXBoxRows % 8 == 0);
// A warp more has nothing to do but copies; without it the first thread does them.
constexpr bool kHasCopier = NPUSIM_BLOCK > kWorkers * 32;
constexpr unsigned kCopier = kHasCopier ? kWorkers * 32 : 0;
static_assert(kHasCopier || NPUSIM_TILES == 0);

// Where a block is in its cluster, and what it multiplies.
struct Share {
  int sharer = static_cast<int>(blockIdx.x % kSharers);
  int neighbour = static_cast<int>(blockIdx.y % kNeighbours);
  int span = static_cast<int>(blockIdx.z);
  int first_row, first_column;
  int begin = span * kBlocksOfK / kSpans;  // blocks of K
  int blocks = (span + 1) * kBlocksOfK / kSpans - begin;

  explicit Share(const BulkTile& tile)
      : first_row(tile.first_row), first_column(tile.first_column) {}

  unsigned rank(int sharer, int neighbour) const {
    return sharer + kSharers * (neighbour + kNeighbours * span);
  }
  // The blocks that take the same rows of x, and those that take the same rows of W.
  unsigned takers_of_x() const {
    unsigned all = 0;
    for (int i = 0; i < kNeighbours; ++i) all |= 1u << rank(sharer, i);
    return all;
  }
  unsigned takers_of_w() const {
    unsigned all = 0;
    for (int i = 0; i < kSharers; ++i) all |= 1u << rank(i, neighbour);
    return all;
  }
  // The block that copies something to this one, of kSharers + kNeighbours - 1.
  static constexpr int kGivers = kSharers + kNeighbours - 1;
  unsigned giver(int i) const {
    if (i < kNeighbours) return rank(sharer, i);
    const int other = i - kNeighbours;
    return rank(other + (other >= sharer ? 1 : 0), neighbour);
  }
};

// Blocks of K pass through the ring one after another, those of all tiles of a block.
struct Ring {
  unsigned base;
  unsigned stage(int block) const { return base + block % kRing * kStageBytes; }
  unsigned filled(int block) const { return base + kBarriersAt + block % kRing * 8; }
  unsigned free(int block) const { return filled(block) + kRing * 8; }
  static unsigned phase(int block) { return block / kRing & 1; }
};

// The maps of x and of the segments of W.
struct Maps {
  const TensorMap* all[1 + params.segments];
};

// The copies for a tile, one thread's work. `passed` blocks of K are before its own in the ring.
struct Copies {
  static constexpr int kEach = kBoxes / kSharers;  // boxes of W that a block copies
  const Share& share;
  const Ring& ring;
  int passed;
  const TensorMap* map_of_x;
  const TensorMap* map_of_w[kEach];
  int row_of_w[kEach], line_of_w[kEach];
  unsigned takers_of_x, takers_of_w;
  unsigned long long policy_of_x = eviction_policy<false>();
  unsigned long long policy_of_w = eviction_policy<kReadOnce>();

  Copies(const Share& share, const Ring& ring, const Maps& maps, int passed)
      : share(share),
        ring(ring),
        passed(passed),
        map_of_x(maps.all[0]),
        takers_of_x(share.takers_of_x()),
        takers_of_w(share.takers_of_w()) {
    constexpr auto p = params;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int line = (share.sharer * kEach + i) * kBoxRows;  // in the tile
      // Where the tile's part begins: its last box may pass the end of a segment, and stays in it.
      const int64_t part = share.first_column + line / kBulkOutputs * params.n;
      int64_t first = 0, before = 0;
      map_of_w[i] = maps.all[1];
#pragma unroll
      for (int s = 1; s < params.segments; ++s) {
        first += p.rows[s - 1];
        if (part < first) continue;
        map_of_w[i] = maps.all[1 + s];
        before = first;
      }
      row_of_w[i] = static_cast<int>(part - before) + line % kBulkOutputs;
      line_of_w[i] = line;
    }
  }

  void copy_w(int i) const {
    const int at = passed + i;
    arrive_and_expect_bytes(ring.filled(at), kStageBytes);
#pragma unroll
    for (int box = 0; box < kEach; ++box) {
      tma_load<(kSharers > 1), kFewRows>(ring.stage(at) + kXBytes + line_of_w[box] * 128,
                                         map_of_w[box], (share.begin + i) * 64, row_of_w[box],
                                         ring.filled(at), takers_of_w, policy_of_w);
    }
  }
  void copy_x(int i) const {
    const int line = share.neighbour * kXBoxRows;
    tma_load<(kNeighbours > 1), kFewRows>(ring.stage(passed + i) + line * 128, map_of_x,
                                          (share.begin + i) * 64, share.first_row + line,
                                          ring.filled(passed + i), takers_of_x, policy_of_x);
  }
  // Fills the ring for the first time; weights do not wait for the launches before.
  void begin() const {
    const auto await = [] {
      wait_on_dependencies();
      fence_proxy_async_global();
    };
    const int first = smaller(share.blocks, kRing), ahead = smaller(share.blocks, kAhead);
    if constexpr (!kWeightsUnwritten) await();
    for (int i = 0; i < ahead; ++i) copy_w(i);
    if constexpr (kWeightsUnwritten) await();
    for (int i = 0; i < ahead; ++i) copy_x(i);
    for (int i = ahead; i < first; ++i) {
      copy_w(i);
      copy_x(i);
    }
  }
  // Copies block i to where another was, once all have multiplied that.
  void refill(int i) const {
    if (i >= share.blocks) return;
    const int at = passed + i;
    if (at >= kRing) wait_barrier(ring.free(at), Ring::phase(at) ^ 1);
    copy_w(i);
    copy_x(i);
  }
};

using Factors = RowFactors<NPUSIM_TILES == 0 && kSlots <= 48>;

// The sums of a warpgroup's 64 rows.
struct Sums {
  static constexpr int kBlocksN = kColumns / 8;
  static constexpr int kSides = kColumns > 256 ? 2 : 1;  // an instruction has 256 columns at most
  float at[kSides][kBlocksN / kSides][4];

  float (&sum(int block))[4] { return at[block * kSides / kBlocksN][block % (kBlocksN / kSides)]; }
  const float (&sum(int block) const)[4] {
    return at[block * kSides / kBlocksN][block % (kBlocksN / kSides)];
  }
  static int row_of(int half) {
    return static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) + half * 8;
  }
  static int column_of(int block) { return block * 8 + static_cast<int>(threadIdx.x % 4) * 2; }

  void multiply(const Share& share, const Ring& ring, const Copies& copies, Factors& factors) {
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum(j)[e] = 0.0f;
    }
    const int blocks = share.blocks, lane = static_cast<int>(threadIdx.x % 32);
    const unsigned giver = share.giver(smaller(lane, Share::kGivers - 1));
    const auto release = [&](int block) {
      if (lane < Share::kGivers) arrive_remote(ring.free(block), giver);
    };
    __builtin_assume(blocks > 0);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      const int block = copies.passed + i;
      wait_barrier(ring.filled(block), Ring::phase(block));
      const unsigned x = ring.stage(block) + threadIdx.x / 128 * (64 * 128);
      warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int side = 0; side < kSides; ++side) {
          const unsigned w = ring.stage(block) + kXBytes + side * (kColumns / kSides * 128);
          wgmma<W>(at[side], matrix_descriptor(x + step * 32), matrix_descriptor(w + step * 32));
        }
      }
      warpgroup_commit();
      warpgroup_wait<kHeld>();
      if (i >= kHeld) release(block - kHeld);
      if constexpr (!kHasCopier) {  // a block of K later, so that this warp does not wait
        if (i > 1 && threadIdx.x == 0) copies.refill(i - 2 + kRing);
        __syncwarp();
      }
    }
    factors.settle();
    warpgroup_wait<0>();
    if constexpr (NPUSIM_TILES > 0 && kHeld > 0) release(copies.passed + blocks - 1);
#pragma unroll
    for (int side = 0; side < kSides; ++side) warpgroup_fence_operand(at[side]);
  }
};

}  // namespace npusim

#include "kernels/cuda/matmul/tma_epilogue.h"

namespace npusim {

inline void make_barriers(const Ring& ring, const Maps& maps) {
#pragma unroll
  for (int i = 0; i < 1 + params.segments; ++i) prefetch_tensor_map(maps.all[i]);
  for (int i = 0; i < kRing; ++i) {
    init_barrier(ring.filled(i), 1);
    init_barrier(ring.free(i), kWorkers * Share::kGivers);
  }
  if constexpr (kSpans > 1) {
    init_barrier(ring.base + kSentAt, 1);
    arrive_and_expect_bytes(ring.base + kSentAt, (kSpans - 1) * kSliceBytes);
  }
  fence_barrier_init();
}

// The tiles of a block that shares nothing, one after the other.
inline void run_alone(const Ring& ring, const Maps& maps, const Finish& finish) {
  const bool works = threadIdx.x < kWorkers * 32;
  int passed = 0;
  Factors factors;
#pragma unroll 1
  for (BulkTile tile; tile.exists(); tile.advance()) {
    const Share share(tile);
    const Copies copies(share, ring, maps, passed);
    if (threadIdx.x == kCopier) {
      if (passed == 0) copies.begin();
#pragma unroll 1
      for (int i = passed == 0 ? kRing : 0; i < share.blocks; ++i) copies.refill(i);
    }
    if (works) {
      if (kScalesRows && passed == 0) wait_on_dependencies();
      factors.read(finish.squares, share.first_row);
      if (threadIdx.x == 0) finish.fetch_vectors(share);
      Sums sums;
      sums.multiply(share, ring, copies, factors);
      factors.scale(sums);
      if (!kScalesRows && passed == 0) wait_on_dependencies();
      store_tile(sums, share, finish);
    }
    passed += share.blocks;
  }
  wait_on_dependencies();
}

// The one tile of a block.
inline void run_together(const Ring& ring, const Maps& maps, const Finish& finish) {
  const bool works = threadIdx.x < kWorkers * 32;
  const Share share{BulkTile{}};
  const Copies copies(share, ring, maps, 0);
  if (threadIdx.x == kCopier) {
    copies.begin();
    if constexpr (kHasCopier) {
#pragma unroll 1
      for (int i = kRing; i < share.blocks; ++i) copies.refill(i);
    }
  }
  __syncwarp();
  if (threadIdx.x == 0) finish.fetch_vectors(share);
  if constexpr (kScalesRows) wait_on_dependencies();
  Sums sums;
  if (works) {
    Factors factors;
    factors.read(finish.squares, share.first_row);
    sums.multiply(share, ring, copies, factors);
    factors.scale(sums);
  }
  if constexpr (!kScalesRows) wait_on_dependencies();
  // Others copy to this block, or read what it copies to them, until here.
  if constexpr (kCluster > 1 && kSpans == 1) cluster_arrive_relaxed();
  if (works) {
    if constexpr (kSpans > 1) {
      send_tile(sums, share);
      finish_slice(share, finish, ring.base + kSentAt);
    } else {
      store_tile(sums, share, finish);
    }
  }
  if constexpr (kSpans > 1) cluster_arrive_relaxed();
  if constexpr (kCluster > 1) cluster_wait();
}

inline void run_bulk(void* const* operands, const Maps& maps) {
  const Ring ring{shared_address(shared_memory)};
  if (threadIdx.x == kCopier) make_barriers(ring, maps);
  __syncwarp();
  if constexpr (kCluster > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }
  launch_dependents();
  const Finish finish(operands);
  if constexpr (NPUSIM_TILES > 0) {
    run_alone(ring, maps, finish);
  } else {
    run_together(ring, maps, finish);
  }
}

}  // namespace npusim
