// Matrix-vector products (one row of x) on the tensor cores, by a grid of one block per
// multiprocessor. A block computes NPUSIM_COLUMNS columns of y. Their rows of W, 16 a tile, pass
// through a multistage pipeline in shared memory in blocks of K of 64 elements. Each warp has a
// pipeline of NPUSIM_STAGES stages and loads every kWarps-th block of K for itself, so that warps
// meet only at the end, where their sums are added in order.
//
// x is a column of the tensor core's B. Where it is normalised on the way, x times the norm's
// weight takes two columns, the second for what rounding to 16 bits leaves of the first.
//
// Where `kWeightsUnwritten`, the first stages are loaded before the wait for x. That they wait in
// shared memory, not in registers, leaves registers for blocks of the next launches, which load
// theirs meanwhile. X and W have the same 16-bit type, and all rows of W end on 16 bytes.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/matmul/gemv_epilogue.h"
#include "kernels/cuda/matmul/linear_operands.h"

namespace npusim {

constexpr int kWarps = NPUSIM_BLOCK / 32, kStages = NPUSIM_STAGES, kColumns = NPUSIM_COLUMNS;
constexpr int kRows = 16 / kParts;  // columns of y of a tile
constexpr int kTiles = static_cast<int>(ceil_div(kColumns, kRows));
constexpr int kRowsUsed = kTiles * kParts > 1 ? 16 : (kColumns + 3) / 4 * 4;  // rows of a tile
constexpr int kRowBytes = 128,
              kStageBytes = kRowsUsed * kRowBytes;      // bytes of a row in a stage, and of a stage
constexpr int kLoads = static_cast<int>(params.k / 8);  // of 16 bytes, in a row
constexpr int kBlocksOfK = (kLoads + 7) / 8,
              kMostBlocks = (kBlocksOfK + kWarps - 1) / kWarps;  // that a warp loads of a tile
constexpr int kXLoads = (kMostBlocks + 3) / 4;  // of 16 bytes, by which a lane loads its part of x
constexpr int kXAt = kWarps * kStages * kStageBytes;                  // of x in shared memory
constexpr int kXBytes = kMostBlocks * kRowBytes * (kNormed ? 2 : 1);  // bytes of it for a warp
static_assert(params.m == 1 && params.k % 8 == 0 && kIs16Bit<W> && kSame<X, W>);
static_assert(kColumns <= NPUSIM_BLOCK && kXAt + kWarps * kXBytes <= NPUSIM_SHARED);

extern __shared__ __align__(128) unsigned char shared_memory[];
__shared__ float tile_sums[kWarps][kTiles * 16], warp_squares[kWarps];

// Where chunk c of row r lies: swizzled, so that eight lanes that read half of two rows have no
// bank conflicts.
inline unsigned chunk_at(int row, int chunk) {
  return row * kRowBytes + ((chunk ^ (row & 1) << 2) << 4);
}
// The n-th chunk of x that this lane loads.
inline int x_chunk(int n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  return ((n * 4 + lane / 8) * kWarps + warp) * 8 + lane % 8;
}

// A warp's blocks of K of all tiles, in order. kWide: all rows begin on 16 bytes.
template <bool kWide, typename W, typename Rows>
struct WeightPipeline {
  const Rows& weights;
  const int64_t first;
  const int columns, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int tile = 0, block = threadIdx.x / 32;  // to load next
  const W* rows[kRowsUsed / 4];            // of that tile, at this lane's chunk
  unsigned rows_exist = 0;                 // bit n: rows[n] exists
  unsigned begin, to;                      // this lane's place in the first stage, and in the next

  WeightPipeline(const Rows& weights, int64_t first, int columns, unsigned stages)
      : weights(weights),
        first(first),
        columns(columns),
        begin(stages + warp * kStages * kStageBytes + chunk_at(lane / 8, lane % 8)),
        to(begin) {
    find_rows();
  }

  void find_rows() {
    rows_exist = 0;
#pragma unroll
    for (int n = 0; n < kRowsUsed / 4; ++n) {
      const int row = n * 4 + lane / 8, column = tile * kRows + row % kRows;
      const bool exists = column < columns;
      rows_exist |= static_cast<unsigned>(exists) << n;
      const int64_t at = exists ? first + column + row / kRows * params.n : 0;
      rows[n] = weights.row(at) + lane % 8 * 8;
    }
  }
  // Starts loading the next block; what does not exist is zero.
  void fill() {
    if (tile < kTiles && block < kBlocksOfK) {
      const bool inside = kLoads % 8 == 0 || block * 8 + lane % 8 < kLoads;
#pragma unroll
      for (int n = 0; n < kRowsUsed / 4; ++n) {
        const bool exists = inside && (rows_exist >> n & 1) != 0;
        const W* from = rows[n] + (inside ? block * 64 : 0);
        if constexpr (kWide) {
          cp_async_evict_first(to + n * 4 * kRowBytes, from, exists);
        } else {
          store_shared(to + n * 4 * kRowBytes, exists ? gather_chunk(from, 8) : uint4{0, 0, 0, 0});
        }
      }
      to = to + kStageBytes == begin + kStages * kStageBytes ? begin : to + kStageBytes;
      block += kWarps;
      if (block >= kBlocksOfK) {
        block = warp;
        if (++tile < kTiles) find_rows();
      }
    }
    cp_async_commit();
  }
};

// Rounds eight numbers to 16 bits, and rounds what is left of them.
template <typename W>
void split_high_low(const float (&v)[8], uint4& high, uint4& low) {
  unsigned words[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[0][i] = pack_pair<W>(v[2 * i], v[2 * i + 1]);
    const W first{static_cast<unsigned short>(words[0][i])};
    const W second{static_cast<unsigned short>(words[0][i] >> 16)};
    words[1][i] = pack_pair<W>(v[2 * i] - to_float(first), v[2 * i + 1] - to_float(second));
  }
  high = {words[0][0], words[0][1], words[0][2], words[0][3]};
  low = {words[1][0], words[1][1], words[1][2], words[1][3]};
}

// Loads this warp's chunks of the norm's weight.
template <bool kWide, typename W>
void load_gains(const W* norm, uint4 (&gains)[kXLoads]) {
#pragma unroll
  for (int n = 0; n < kXLoads; ++n) {
    const int at = x_chunk(n);
    gains[n] = uint4{0, 0, 0, 0};
    if (at < kLoads) gains[n] = kWide ? load_kept(norm + at * 8) : gather_chunk(norm + at * 8, 8);
  }
}

// A power of two that brings numbers up to `top` into the range of W, and its inverse.
struct RangeScale {
  float up = 1.0f, down = 1.0f;
};
template <typename W>
RangeScale range_scale_for(float top) {
  constexpr int kWanted = 8;  // exponent of the largest, far from what 16 bits hold
  if constexpr (kSame<W, float16>) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, far));
    }
    const int exponent = static_cast<int>(__float_as_uint(top) >> 23);  // biased
    if (exponent > kWanted) {
      return {__uint_as_float((254 + kWanted - exponent) << 23),
              __uint_as_float((exponent - kWanted) << 23)};
    }
  }
  return {};
}

// This lane's part of the sum of squares of x, and the factor of the warp's sums.
struct WarpRow {
  float squares = 0.0f, scale = 1.0f;
};

// Stores this warp's blocks of x in shared memory, times the norm's weight.
template <bool kWide, typename X, typename W>
WarpRow load_row(const X* x, const uint4 (&gains)[kXLoads], unsigned to) {
  uint4 loaded[kXLoads];
#pragma unroll
  for (int n = 0; n < kXLoads; ++n) {
    const int at = x_chunk(n);
    loaded[n] = uint4{0, 0, 0, 0};
    if (at < kLoads) loaded[n] = kWide ? load_kept(x + at * 8) : gather_chunk(x + at * 8, 8);
  }
  WarpRow row;
  float v[kNormed ? kXLoads : 1][8], top = 0.0f;
  RangeScale range_scale;
  if constexpr (kNormed) {
#pragma unroll
    for (int n = 0; n < kXLoads; ++n) {
      float gain[8];
      unpack<X>(loaded[n], v[n]);
      unpack<W>(gains[n], gain);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        row.squares += v[n][e] * v[n][e];
        v[n][e] *= gain[e];
        top = fmaxf(top, fabsf(v[n][e]));
      }
    }
    range_scale = range_scale_for<W>(top);
    row.scale = range_scale.down;
  }
#pragma unroll
  for (int n = 0; n < kXLoads; ++n) {
    const int block = n * 4 + threadIdx.x % 32 / 8;
    const unsigned place = to + block * kRowBytes + threadIdx.x % 8 * 16;
    if (block >= kMostBlocks) continue;
    if constexpr (kNormed) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[n][e] *= range_scale.up;
      uint4 high, low;
      split_high_low<W>(v[n], high, low);
      store_shared(place, high);
      store_shared(place + kMostBlocks * kRowBytes, low);
    } else {
      store_shared(place, loaded[n]);
    }
  }
  __syncwarp();
  return row;
}

inline float warp_sum(float v) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(0xffffffffu, v, far);
  return v;
}

// Multiplies this warp's blocks by its x, and leaves the sums of each row in tile_sums.
template <typename W, typename R>
void multiply_blocks(R& pipeline, unsigned stages, unsigned x_at, float scale) {
  const int g = pipeline.lane / 4, t = pipeline.lane % 4;
  const unsigned own = stages + pipeline.warp * kStages * kStageBytes;
  // A row that the tile does not have reads one of the last two; its sums are not used.
  const int low = g < kRowsUsed ? g : kRowsUsed - 2 + g % 2;
  const int high = g + 8 < kRowsUsed ? g + 8 : kRowsUsed - 2 + g % 2;
  const unsigned halves[] = {own + chunk_at(low, t), own + chunk_at(low, t + 4)};
  const int other = kRowsUsed == 16 ? 8 * kRowBytes : (high - low) * kRowBytes;
  const unsigned x = x_at + (kNormed ? (g & 1) * kMostBlocks * kRowBytes : 0) + t * 16;
  const int blocks = (kBlocksOfK - pipeline.warp + kWarps - 1) / kWarps;
  unsigned stage = 0;
#pragma unroll 1
  for (int tile = 0; tile < kTiles; ++tile) {
    float sums[2][4] = {};
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      cp_async_wait<kStages - 1>();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 a = load_shared(halves[j] + stage);
        const uint4 b = load_shared(halves[j] + stage + other);
        const uint4 c = load_shared(x + i * kRowBytes + j * 64);
        mma_16x8x16<W>(sums[j], a.x, b.x, a.y, b.y, c.x, c.y);
        mma_16x8x16<W>(sums[j], a.z, b.z, a.w, b.w, c.z, c.w);
      }
      __syncwarp();
      pipeline.fill();
      stage = stage + kStageBytes == kStages * kStageBytes ? 0 : stage + kStageBytes;
    }
    if (t > 0) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sums[0][half * 2] + sums[1][half * 2];
      if constexpr (kNormed) sum += sums[0][half * 2 + 1] + sums[1][half * 2 + 1];
      tile_sums[pipeline.warp][tile * 16 + half * 8 + g] = sum * scale;
    }
  }
}

template <bool kWide, typename X, typename W, typename Rows>
void run_multistage(const Rows& weights, const X* x, const Epilogue& epilogue) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int columns = static_cast<int>(smaller<int64_t>(kColumns, params.n - first));
  const unsigned stages = shared_address(shared_memory), x_at = stages + kXAt + warp * kXBytes;

  PendingOutput output(0, first + mine, mine < columns);
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  WeightPipeline<kWide, W, Rows> pipeline(weights, first, columns, stages);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) pipeline.fill();
  uint4 gains[kXLoads] = {};
  if constexpr (kNormed) load_gains<kWide>(weights.norm(), gains);
  if constexpr (kBiasUnwritten) output.read_bias(epilogue);
  if constexpr (kWeightsUnwritten) wait_on_dependencies();
  if constexpr (!kBiasUnwritten) output.read_bias(epilogue);

  const WarpRow row = load_row<kWide, X, W>(x, gains, x_at);
  output.read_residual(epilogue);
  multiply_blocks<W>(pipeline, stages, x_at, row.scale);
  if constexpr (kNormed) {
    const float sum = warp_sum(row.squares);
    if (lane == 0) warp_squares[warp] = sum;
  }
  __syncthreads();
  if (!output.exists) return;
  float v[kParts] = {}, total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      v[part] += tile_sums[w][mine / kRows * 16 + part * kRows + mine % kRows];
    }
    if constexpr (kNormed) total += warp_squares[w];
  }
  if constexpr (kNormed) {
    const float scale = scalar::rsqrt(total / static_cast<float>(params.k) + kNormEps);
#pragma unroll
    for (int part = 0; part < kParts; ++part) v[part] *= scale;
  }
  output.store(epilogue, v);
}

}  // namespace npusim
