// Products of many rows on Hopper: one warp of a block has boxes of x and W copied to a ring in
// shared memory, the other warps multiply them, a warpgroup 64 rows of a tile. Included behind
// mma_linear.h, whose Tile does the work elsewhere and where operands lie badly.
//
// The blocks of a cluster work together in two ways. NPUSIM_SHARE_ROWS blocks with rows of x of
// their own take the same rows of W, NPUSIM_SHARE_COLUMNS blocks the same rows of x: each copies a
// part for all of them. And NPUSIM_SPANS blocks cut K: each sends its sums to the block that
// finishes the rows, which adds them up in order. Blocks without a cluster may take one tile after
// the other (NPUSIM_TILES): the ring is filled for the next one while a tile is finished.
#pragma once
#include "kernels/cuda/mma_bulk_copy.h"

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
    expect_bytes(ring.filled(at), kStageBytes);
#pragma unroll
    for (int box = 0; box < kEach; ++box) {
      copy_box<(kSharers > 1)>(ring.stage(at) + kXBytes + line_of_w[box] * 128, map_of_w[box],
                               (share.begin + i) * 64, row_of_w[box], ring.filled(at), takers_of_w);
    }
  }
  void copy_x(int i) const {
    const int line = share.neighbour * kXBoxRows;
    copy_box<(kNeighbours > 1)>(ring.stage(passed + i) + line * 128, map_of_x,
                                (share.begin + i) * 64, share.first_row + line,
                                ring.filled(passed + i), takers_of_x);
  }
  // Fills the ring for the first time; weights do not wait for the launches before.
  void begin() const {
    const auto await = [] {
      await_operands();
      publish_to_copies();
    };
    const int first = smaller(share.blocks, kRing);
    if constexpr (!kWeightsSettled) await();
    for (int i = 0; i < first; ++i) copy_w(i);
    if constexpr (kWeightsSettled) await();
    for (int i = 0; i < first; ++i) copy_x(i);
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

  void multiply(const Share& share, const Ring& ring, const Copies& copies) {
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum(j)[e] = 0.0f;
    }
    const int blocks = share.blocks, lane = static_cast<int>(threadIdx.x % 32);
    const unsigned giver = share.giver(smaller(lane, Share::kGivers - 1));
    const auto release = [&](int block) {
      if (lane < Share::kGivers) arrive_in_block(ring.free(block), giver);
    };
    __builtin_assume(blocks > 0);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      const int block = copies.passed + i;
      wait_barrier(ring.filled(block), Ring::phase(block));
      const unsigned x = ring.stage(block) + threadIdx.x / 128 * (64 * 128);
      begin_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int side = 0; side < kSides; ++side) {
          const unsigned w = ring.stage(block) + kXBytes + side * (kColumns / kSides * 128);
          multiply_add_group<W>(at[side], tile_descriptor(x + step * 32),
                                tile_descriptor(w + step * 32));
        }
      }
      commit_products();
      wait_products<1>();
      if (i > 0) release(block - 1);
      if constexpr (!kHasCopier) {  // a block of K later, so that this warp does not wait
        if (i > 1 && threadIdx.x == 0) copies.refill(i - 2 + kRing);
        __syncwarp();
      }
    }
    wait_products<0>();
    if constexpr (NPUSIM_TILES > 0) release(copies.passed + blocks - 1);
#pragma unroll
    for (int side = 0; side < kSides; ++side) hold(at[side]);
  }
};

// Eight columns of a row of y, of which those before params.n exist: one store where they lie on 16
// bytes.
constexpr bool kWideRows = params.ldy % 8 == 0 && (!params.residual || params.ldr % 8 == 0);

struct Finish {
  EpilogueOfEight epilogue;

  explicit Finish(void* const* operands) : epilogue(Epilogue(operands, params.segments)) {
    epilogue.wide = epilogue.wide && kWideRows;
  }
  static int count(int row, int column) {
    return row < params.m ? static_cast<int>(smaller<int64_t>(params.n - column, 8)) : 0;
  }
  uint4 residual(int row, int column) const {
    return epilogue.residual(static_cast<int64_t>(row) * params.ldr + column, count(row, column));
  }
  void bias(int column, float (&b)[8]) const {
    epilogue.bias(column, static_cast<int>(smaller<int64_t>(params.n - column, 8)), b);
  }
  void store(int row, int column, const uint4& residual, const float (&bias)[8],
             const float (&sums)[8]) const {
    const int exist = count(row, column);
    if (exist <= 0) return;
    epilogue.finish(static_cast<int64_t>(row) * params.ldy + column,
                    static_cast<int64_t>(row) * params.ldr + column, exist, residual, bias, sums);
  }
  // The same of gated products, which have no residual.
  void store(int row, int column, const float (&first)[8], const float (&second)[8]) const {
    const int exist = count(row, column);
    if (exist <= 0) return;
    float b[8], more[8], v[8];
    bias(column, b);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      more[e] = params.has_bias && e < exist ? epilogue.epilogue.bias[params.n + column + e] : 0;
      v[e] = Epilogue::finished_gated(first[e], second[e], b[e], more[e]);
    }
    const int64_t at = static_cast<int64_t>(row) * params.ldy + column;
    if constexpr (sizeof(Epilogue::Y) == 2) {
      if (epilogue.wide && exist >= 8) {
        using Y = Epilogue::Y;
        *reinterpret_cast<uint4*>(epilogue.epilogue.y + at) = {
            pack_pair<Y>(v[0], v[1]), pack_pair<Y>(v[2], v[3]), pack_pair<Y>(v[4], v[5]),
            pack_pair<Y>(v[6], v[7])};
        return;
      }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (e < exist) epilogue.epilogue.store(at + e, v[e]);
    }
  }
};

// Stores a tile whose K was not cut. The lanes of a quad exchange sums, so that each has eight
// neighbouring columns of a row: those of every fourth block. What is added to the sums of several
// blocks is asked for before any of them is stored.
inline void store_tile(const Sums& sums, const Share& share, const Finish& finish) {
  constexpr int kBlocks = Sums::kBlocksN / kParts, kQuads = (kBlocks + 3) / 4;
  // As many quads of blocks as registers are left for.
  constexpr int kRegisters =
      65536 / static_cast<int>(ceil_div(NPUSIM_BESIDE * NPUSIM_BLOCK, 128) * 128);
  constexpr int kLeft = (kRegisters - Sums::kBlocksN * 4 - 44) / 16;
  constexpr int kGroup = kParts == 2 ? 1 : smaller(kQuads, larger(1, smaller(kLeft, 4)));
  const int t = static_cast<int>(threadIdx.x % 4);
  const auto column_of = [&](int quad) { return share.first_column + (quad * 4 + t) * 8; };
  const auto eight = [&](int quad, int part, int half, float (&v)[8]) {
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (quad * 4 + j >= kBlocks) continue;
      even[j] = sums.sum(part * kBlocks + quad * 4 + j)[half * 2];
      odd[j] = sums.sum(part * kBlocks + quad * 4 + j)[half * 2 + 1];
    }
    transpose_quad(even);
    transpose_quad(odd);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[e * 2] = even[e];
      v[e * 2 + 1] = odd[e];
    }
  };
#pragma unroll
  for (int first = 0; first < kQuads; first += kGroup) {
    uint4 residual[kGroup][2];
    float bias[kGroup][8];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const bool exists = first + i < kQuads && (first + i) * 4 + t < kBlocks;
      const int column = exists ? column_of(first + i) : static_cast<int>(params.n);
      if constexpr (kParts == 1) {
        finish.bias(column, bias[i]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          residual[i][half] = finish.residual(share.first_row + Sums::row_of(half), column);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (first + i >= kQuads) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = share.first_row + Sums::row_of(half), column = column_of(first + i);
        float v[kParts][8];
#pragma unroll
        for (int part = 0; part < kParts; ++part) eight(first + i, part, half, v[part]);
        if ((first + i) * 4 + t >= kBlocks) continue;
        if constexpr (kParts == 2) {
          finish.store(row, column, v[0], v[kParts - 1]);
        } else {
          finish.store(row, column, residual[i][half], bias[i], v[0]);
        }
      }
    }
  }
}

// Sums of a cluster. A block leaves its own in its ring, [row][column], and has the slices of
// others copied to them: [span][row of the slice][column], behind the barriers, its own slice left
// out.
constexpr int kSliceRows = kTileRows / kSpans, kLine = kColumns + 8;
constexpr int kSliceBytes = kSliceRows * kLine * 4;
constexpr int kSentAt = kBarriersAt + kRing * 16;  // the barrier that counts them
constexpr int kSumsAt = ceil_div(kSentAt + 8, 128) * 128;
static_assert(kSpans == 1 || (kTileRows * kLine * 4 <= kBarriersAt &&
                              kSumsAt + (kSpans - 1) * kSliceBytes <= NPUSIM_SHARED));

// Where the block of span `to` has what span `from` has sent it.
inline int slice_at(int from, int to) {
  return kSumsAt + (from < to ? from : from - 1) * kSliceBytes;
}

inline void send_tile(const Sums& sums, const Share& share) {
  const unsigned base = shared_address(shared_memory);
  wait_for_workers<kWorkers * 32>();  // all have multiplied what is in the ring
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* to = reinterpret_cast<float*>(shared_memory) + Sums::row_of(half) * kLine;
#pragma unroll
    for (int j = 0; j < Sums::kBlocksN; ++j) {
      to[Sums::column_of(j)] = sums.sum(j)[half * 2];
      to[Sums::column_of(j) + 1] = sums.sum(j)[half * 2 + 1];
    }
  }
  publish_to_warpgroups();
  wait_for_workers<kWorkers * 32>();
  if (threadIdx.x != 0) return;
#pragma unroll 1
  for (int i = 1; i < kSpans; ++i) {
    const int span = (share.span + i) % kSpans;
    const unsigned rank = share.sharer + kSharers * (share.neighbour + kNeighbours * span);
    copy_to_block(address_in_block(base + slice_at(share.span, span), rank),
                  base + span * kSliceBytes, kSliceBytes, address_in_block(base + kSentAt, rank));
  }
}

// What a thread finishes of a slice: eight columns of y at a time.
constexpr int kChunks = static_cast<int>(ceil_div(kBulkOutputs, 8));  // of a row
constexpr int kEachChunk = static_cast<int>(ceil_div(kSliceRows * kChunks, kWorkers * 32));

inline void finish_slice(const Share& share, const Finish& finish, unsigned sent) {
  const auto line = [&](int i) {
    return (static_cast<int>(threadIdx.x) + i * kWorkers * 32) / kChunks;
  };
  const auto column = [&](int i) {
    return (static_cast<int>(threadIdx.x) + i * kWorkers * 32) % kChunks * 8;
  };
  const int first_row = share.first_row + share.span * kSliceRows;
  uint4 residual[kEachChunk];
  float bias[kEachChunk][8];
  if constexpr (kParts == 1) {
#pragma unroll
    for (int i = 0; i < kEachChunk; ++i) {
      const int row = line(i) < kSliceRows ? first_row + line(i) : static_cast<int>(params.m);
      residual[i] = finish.residual(row, share.first_column + column(i));
      finish.bias(share.first_column + column(i), bias[i]);
    }
  }
  wait_barrier(sent, 0);  // all sums are here
#pragma unroll
  for (int i = 0; i < kEachChunk; ++i) {
    if (line(i) >= kSliceRows) break;
    float v[kParts][8] = {};
#pragma unroll
    for (int span = 0; span < kSpans; ++span) {
      const int at = span == share.span ? span * kSliceBytes : slice_at(span, share.span);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float more[8];
        load_floats<8>(reinterpret_cast<const float*>(shared_memory + at) + line(i) * kLine +
                           part * kBulkOutputs + column(i),
                       more);
#pragma unroll
        for (int e = 0; e < 8; ++e) v[part][e] += more[e];
      }
    }
    const int row = first_row + line(i);
    if constexpr (kParts == 2) {
      finish.store(row, share.first_column + column(i), v[0], v[kParts - 1]);
    } else {
      finish.store(row, share.first_column + column(i), residual[i], bias[i], v[0]);
    }
  }
}

inline void make_barriers(const Ring& ring, const Maps& maps) {
#pragma unroll
  for (int i = 0; i < 1 + params.segments; ++i) fetch_map(maps.all[i]);
  for (int i = 0; i < kRing; ++i) {
    make_barrier(ring.filled(i), 1);
    make_barrier(ring.free(i), kWorkers * Share::kGivers);
  }
  if constexpr (kSpans > 1) {
    make_barrier(ring.base + kSentAt, 1);
    expect_bytes(ring.base + kSentAt, (kSpans - 1) * kSliceBytes);
  }
  publish_barriers();
}

// The tiles of a block that shares nothing, one after the other.
inline void run_alone(const Ring& ring, const Maps& maps, const Finish& finish) {
  const bool works = threadIdx.x < kWorkers * 32;
  int passed = 0;
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
      Sums sums;
      sums.multiply(share, ring, copies);
      if (passed == 0) await_operands();
      store_tile(sums, share, finish);
    }
    passed += share.blocks;
  }
  await_operands();
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
  Sums sums;
  if (works) sums.multiply(share, ring, copies);
  await_operands();
  // Others copy to this block, or read what it copies to them, until here.
  if constexpr (kCluster > 1 && kSpans == 1) arrive_in_cluster_bare();
  if (works) {
    if constexpr (kSpans > 1) {
      send_tile(sums, share);
      finish_slice(share, finish, ring.base + kSentAt);
    } else {
      store_tile(sums, share, finish);
    }
  }
  if constexpr (kSpans > 1) arrive_in_cluster_bare();
  if constexpr (kCluster > 1) wait_for_cluster();
}

inline void run_bulk(void* const* operands, const Maps& maps) {
  const Ring ring{shared_address(shared_memory)};
  if (threadIdx.x == kCopier) make_barriers(ring, maps);
  __syncwarp();
  if constexpr (kCluster > 1) {
    arrive_in_cluster_bare();
    wait_for_cluster();
  } else {
    __syncthreads();
  }
  start_successors();
  const Finish finish(operands);
  if constexpr (NPUSIM_TILES > 0) {
    run_alone(ring, maps, finish);
  } else {
    run_together(ring, maps, finish);
  }
}

}  // namespace npusim
