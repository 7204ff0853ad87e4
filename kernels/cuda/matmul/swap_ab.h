// Matrix products of few rows on Hopper: y^T = W x^T, rows of W as the first operand of wgmma, 64
// of a warpgroup, and all rows of x as its columns. So a block reads little but W, and a product of
// 8 rows takes what its weights take.
//
// A producer warp loads tiles of W and x by TMA into a multistage pipeline in shared memory; where
// nothing in the method writes W, NPUSIM_AHEAD stages of it before the wait for x. The
// NPUSIM_CLUSTER_K blocks of a cluster have a slice of K each. Sums go through shared memory, where
// they are turned, [row of x][row of W]: each block sends the others the rows that these finish.
//
// An element of y has one order of addition for any number of rows: blocks of 64 of K one after the
// other in a slice, whose number follows from W, and the slices in order.
#pragma once
#include "kernels/cuda/common/dependent_launch.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/matmul/linear_operands.h"
#include "kernels/cuda/matmul/row_epilogue.h"
#include "kernels/cuda/matmul/swap_ab_columns.h"
#include "kernels/cuda/matmul/tma_maps.h"

namespace npusim::swap_ab {

constexpr int kM = static_cast<int>(params.m);
constexpr int kTokens = NPUSIM_TOKENS;  // columns of wgmma, of which the first kM are rows of x
constexpr int kGroups = NPUSIM_GROUPS;  // warpgroups that multiply
constexpr int kRowsOfW = 64 * kGroups, kOutputs = kRowsOfW / kStrips;  // of a tile, of a strip
constexpr int kSlices = NPUSIM_CLUSTER_K;
constexpr int kStages = NPUSIM_PIPELINE_STAGES;
constexpr int kBytesOfW = kRowsOfW * 128, kStageBytes = kBytesOfW + kTokens * 128;
constexpr int kPitch = kRowsOfW + 4;  // of rows of sums: a quad stores rows in banks of their own
// Full barriers, empty ones, then that of the exchange.
constexpr int kBarriersAt = larger(kStages * kStageBytes, kTokens * kPitch * 4);
constexpr int kExchangeBarrierAt = kBarriersAt + kStages * 16;
constexpr int kBlocksOfK = static_cast<int>(ceil_div(params.k, 64));
constexpr int kThreads = 128 * kGroups;  // of the consumers
static_assert(kM <= kTokens && NPUSIM_BLOCK == kThreads + 32);

// Sums in shared memory: of a block's own slice of K over its pipeline, and those that it receives
// behind the barriers, all [row of x][kPitch].
constexpr int kMostRows = static_cast<int>(ceil_div(kM, kSlices));  // that a block finishes
constexpr int kReceivedAt = ceil_div(kExchangeBarrierAt + 8, 128) * 128;
constexpr int kReceivedBytes = kMostRows * kPitch * 4;                   // from each other block
constexpr int kScalesAt = kReceivedAt + (kSlices - 1) * kReceivedBytes;  // of x, after a norm
constexpr int kKeptAt = kScalesAt + kMostRows * 4, kPlacesAt = kKeptAt + kMostRows * 4;
static_assert((kRotates ? kPlacesAt + kM * 4 : kAfterNorm ? kKeptAt : kScalesAt) <= NPUSIM_SHARED);

// What a block computes: its tile, its slice of K, and the rows of x that it finishes.
struct Block {
  int rank = static_cast<int>(blockIdx.z);
  int first_column = column_of_tile(static_cast<int>(blockIdx.y), kOutputs);
  int begin = rank * kBlocksOfK / kSlices;  // blocks of K
  int blocks = (rank + 1) * kBlocksOfK / kSlices - begin;
  int first_row = row_of_rank(rank);
  int rows = row_of_rank(rank + 1) - first_row;

  static int row_of_rank(int rank) { return rank * kM / kSlices; }
};

struct Pipeline {
  unsigned base = shared_address(shared_memory);
  unsigned stage(int block) const { return base + block % kStages * kStageBytes; }
  unsigned full_barrier(int block) const { return base + kBarriersAt + block % kStages * 8; }
  unsigned empty_barrier(int block) const { return full_barrier(block) + kStages * 8; }
  unsigned exchange_barrier() const { return base + kExchangeBarrierAt; }
  static unsigned phase(int block) { return block / kStages & 1; }

  // By one thread; the exchange's completes when all sums for this block's rows have arrived.
  void init(const Block& block) const {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(full_barrier(i), 1);
      init_barrier(empty_barrier(i), kThreads / 32);
    }
    if constexpr (kSlices > 1) {
      init_barrier(exchange_barrier(), 1);
      arrive_and_expect_bytes(exchange_barrier(), (kSlices - 1) * block.rows * kPitch * 4);
    }
    fence_barrier_init();
  }
};

// The loads of a block, by one thread.
inline void load_blocks(const Block& block, const Pipeline& pipeline, const Maps& maps) {
  const unsigned long long evict_first = eviction_policy<true>(), keep = eviction_policy<false>();
  MappedRow parts[kStrips];
#pragma unroll
  for (int part = 0; part < kStrips; ++part)
    parts[part] = mapped_row(maps, block.first_column + part * kSecondStrip);
  const auto load_w = [&](int i) {
    arrive_and_expect_bytes(pipeline.full_barrier(i), kStageBytes);
#pragma unroll
    for (int part = 0; part < kStrips; ++part) {
      tma_load<false, true>(pipeline.stage(i) + part * kOutputs * 128, parts[part].map,
                            (block.begin + i) * 64, parts[part].row, pipeline.full_barrier(i), 0,
                            evict_first);
    }
  };
  const auto load_x = [&](int i) {
    tma_load<false, true>(pipeline.stage(i) + kBytesOfW, maps.all[0], (block.begin + i) * 64, 0,
                          pipeline.full_barrier(i), 0, keep);
  };
  const int ahead = kWeightsUnwritten ? smaller(block.blocks, NPUSIM_AHEAD) : 0;
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) load_w(i);
  wait_on_dependencies();
  fence_proxy_async_global();
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) load_x(i);
#pragma unroll 1
  for (int i = ahead; i < block.blocks; ++i) {
    if (i >= kStages) wait_barrier(pipeline.empty_barrier(i), Pipeline::phase(i) ^ 1);
    load_w(i);
    load_x(i);
  }
}

// Multiplies a block's slice of K, and leaves its sums over the pipeline.
inline void multiply(const Block& block, const Pipeline& pipeline) {
  constexpr int kBlocksN = kTokens / 8;
  // Many rows: the next product is started before a stage is released.
  constexpr int kInFlight = kTokens > 128 ? 1 : 0;
  float sums[kBlocksN][4];
#pragma unroll
  for (int i = 0; i < kBlocksN * 4; ++i) sums[i / 4][i % 4] = 0.0f;
  const bool releases = threadIdx.x % 32 == 0;
#pragma unroll 1
  for (int i = 0; i < block.blocks; ++i) {
    wait_barrier(pipeline.full_barrier(i), Pipeline::phase(i));
    const unsigned w = pipeline.stage(i) + threadIdx.x / 128 * (64 * 128);
    const unsigned x = pipeline.stage(i) + kBytesOfW;
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      wgmma<W>(sums, matrix_descriptor(w + step * 32), matrix_descriptor(x + step * 32));
    warpgroup_commit();
    warpgroup_wait<kInFlight>();
    if (releases && i >= kInFlight) arrive(pipeline.empty_barrier(i - kInFlight));
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
  sync_consumers<kThreads>();  // the pipeline is no longer read
  const int lane = static_cast<int>(threadIdx.x % 32);
  float* to = reinterpret_cast<float*>(shared_memory) + lane % 4 * 2 * kPitch +
              threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) to[(j * 8 + e % 2) * kPitch + e / 2 * 8] = sums[j][e];
  }
}

// Where the block of rank `to` receives what rank `from` has sent.
inline int received_at(int from, int to) {
  return kReceivedAt + (from < to ? from : from - 1) * kReceivedBytes;
}

// Sends each other block of the cluster the sums of its rows.
inline void send_sums(const Block& block, const Pipeline& pipeline) {
  fence_proxy_async_shared();
  sync_consumers<kThreads>();
  if (threadIdx.x != 0) return;
#pragma unroll 1
  for (int i = 1; i < kSlices; ++i) {
    const int rank = (block.rank + i) % kSlices, first = Block::row_of_rank(rank);
    const int bytes = (Block::row_of_rank(rank + 1) - first) * kPitch * 4;
    if (bytes == 0) continue;
    copy_distributed_shared(map_shared_rank(pipeline.base + received_at(block.rank, rank), rank),
                            pipeline.base + first * kPitch * 4, bytes,
                            map_shared_rank(pipeline.exchange_barrier(), rank));
  }
}

// The norm's factors of the rows that this block finishes, by two lanes each, in the order of
// RowScales.
inline void find_scales(const Block& block, const float* squares) {
  if constexpr (kAfterNorm) {
    float* scales = reinterpret_cast<float*>(shared_memory + kScalesAt);
    const int half = static_cast<int>(threadIdx.x % 2);
#pragma unroll 1
    for (int first = 0; first < block.rows; first += kThreads / 2) {
      const int row = first + static_cast<int>(threadIdx.x / 2);
      const float* slot =
          squares + half * params.m + block.first_row + smaller(row, block.rows - 1);
      float read[kSlots / 2 + 1], sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kSlots / 2; ++i) read[i] = slot[i * 2 * params.m];
#pragma unroll
      for (int i = 0; i < kSlots / 2; ++i) sum += read[i];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      if (half == 0 && row < block.rows) scales[row] = row_scale(sum);
    }
  }
}

// A thread finishes eight columns of y of some rows, in turns of kAtOnce rows a block.
constexpr int kChunks = kOutputs / 8, kAtOnce = kThreads / kChunks;
constexpr int kTurns = static_cast<int>(ceil_div(kMostRows, kAtOnce));
constexpr int kTogether = smaller(kTurns, 4);  // turns whose residuals are loaded together
static_assert(kThreads % kChunks == 0);

// The vectors of this thread's columns, and what its first rows' sums are added to or turned by.
struct Finish {
  const RowEpilogue row_epilogue;
  int chunk = static_cast<int>(threadIdx.x) % kChunks;
  int line = static_cast<int>(threadIdx.x) / kChunks;
  int column;
  const Columns columns;
  float bias[kStrips][8];
  uint4 norm;
  Columns::Read read[kTogether];

  Finish(void* const* operands, const Block& block)
      : row_epilogue(operands), column(block.first_column + chunk * 8), columns(operands, column) {
    row_epilogue.bias(column, bias[0]);
    if constexpr (kParts == 2) row_epilogue.second_bias(column, bias[kStrips - 1]);
    if constexpr (kRotates) row_epilogue.bias(column + kSecondStrip, bias[kStrips - 1]);
    norm = row_epilogue.norm(column);
  }
  // Turns as from row `first` of the block's on.
  void read_rows(const Block& block, int first) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = first + i * kAtOnce + line;
      read[i] = columns.read(row_epilogue, row < block.rows ? block.first_row + row : kM);
    }
  }
  // One part's sum over the slices of K.
  void add_slices(const Block& block, int row, int part, float (&v)[8]) const {
#pragma unroll
    for (int rank = 0; rank < kSlices; ++rank) {
      const bool own = rank == block.rank;
      const int base = own ? block.first_row * kPitch * 4 : received_at(rank, block.rank);
      float more[8];
      load_floats<8>(reinterpret_cast<const float*>(shared_memory + base) + row * kPitch +
                         part * kOutputs + chunk * 8,
                     more);
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = kSlices == 1 ? more[e] : v[e] + more[e];
    }
    if constexpr (kAfterNorm) {
      const float scale = reinterpret_cast<const float*>(shared_memory + kScalesAt)[row];
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = __fmul_rn(v[e], scale);  // rounded, as tiles have it
    }
  }
  void store(const Block& block, int first) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = first + i * kAtOnce + line;
      const bool exists = row < block.rows;
      float v[kStrips][8] = {}, squares = 0.0f;
      if (exists) {
#pragma unroll
        for (int part = 0; part < kStrips; ++part) add_slices(block, row, part, v[part]);
        const int* kept = reinterpret_cast<const int*>(shared_memory + kKeptAt);
        squares =
            columns.store(row_epilogue, block.first_row + row, kept + row, read[i], bias, norm, v);
      }
      if constexpr (kBeforeNorm) {
        const float fifth = __shfl_down_sync(0xffffffffu, squares, 4, 8);
        const float sum = NormOutputs::quad_sum(squares, fifth);
        if (exists && chunk % 8 == 0) {
          row_epilogue.norm_outputs.store_squares<static_cast<int>(ceil_div(params.n, 64))>(
              block.first_row + row, column / 64, sum);
        }
      }
    }
  }
};

inline void consume(void* const* operands, const Block& block, const Pipeline& pipeline) {
  constexpr bool kReadsEarly =
      kWeightsUnwritten && (kBiasUnwritten || !params.has_bias) && Columns::kPlacesUnwritten;
  if constexpr (!kReadsEarly) wait_on_dependencies();
  Finish finish(operands, block);
  const auto ints = [](int at) { return reinterpret_cast<int*>(shared_memory + at); };
  finish.columns.find_places<kThreads, kMostRows>(block.first_row, block.rows, ints(kPlacesAt),
                                                  ints(kKeptAt), sync_consumers<kThreads>);
  if constexpr (kReadsEarly) wait_on_dependencies();
  finish.columns.report(block.first_row, block.rows, ints(kPlacesAt), finish.line, kAtOnce);
  finish.read_rows(block, 0);
  find_scales(block, finish.row_epilogue.squares);
  multiply(block, pipeline);
  if constexpr (kSlices > 1) {
    send_sums(block, pipeline);
    if (block.rows > 0) wait_barrier(pipeline.exchange_barrier(), 0);
  } else {
    sync_consumers<kThreads>();
  }
#pragma unroll 1
  for (int first = 0; first < block.rows; first += kAtOnce * kTogether) {
    if (first > 0) finish.read_rows(block, first);
    finish.store(block, first);
  }
}

// Whether the loads and stores of 16 bytes can be done.
inline bool fits(void* const* operands) {
  return operands_are_chunk_aligned(operands) && Columns::are_aligned(operands);
}

inline void run(void* const* operands, const Maps& maps) {
  const Block block;
  const Pipeline pipeline;
  if (threadIdx.x == kThreads) {
#pragma unroll
    for (int i = 0; i < 1 + params.segments; ++i) prefetch_tensor_map(maps.all[i]);
    pipeline.init(block);
  }
  __syncwarp();
  if constexpr (kSlices > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }
  launch_dependents();
  if (threadIdx.x == kThreads) {
    load_blocks(block, pipeline, maps);
  } else if (threadIdx.x < kThreads) {
    consume(operands, block, pipeline);
  } else {
    wait_on_dependencies();
  }
  __syncwarp();
  // Until here other blocks copy from this one's shared memory, or to it.
  if constexpr (kSlices > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  }
}

}  // namespace npusim::swap_ab
