// Matrix-vector products (one row of x, or few) on the tensor cores, by a grid of one block per
// multiprocessor, or a few. A block computes NPUSIM_COLUMNS columns of y. Their rows of W, 16 a
// tile, pass through a multistage pipeline in shared memory in blocks of K. Each warp has a
// pipeline of NPUSIM_STAGES stages and loads every kWarps-th block of K for itself, so that warps
// meet only at the end, where their sums are added in order.
//
// `StageFormat` says how W lies in a stage, and how the tensor cores multiply it: floats, or, where
// NPUSIM_ROW_BYTES tells how many bytes of a row a stage has, codes. Where x is normalised on the
// way, x times the norm's weight takes two columns, the second for what rounding to 16 bits leaves
// of the first.
//
// Where `kWeightsUnwritten`, the first stages are loaded before the wait for x. That they wait in
// shared memory, not in registers, leaves registers for blocks of the next launches, which load
// theirs meanwhile. X is of 16 bits, and all rows of W end on 16 bytes.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/matmul/gemv_epilogue.h"
#include "kernels/cuda/matmul/product_operands.h"
#ifdef NPUSIM_ROW_BYTES
#include "kernels/cuda/quantization/gemv_codes.h"
#else
#include "kernels/cuda/matmul/gemv_floats.h"
#endif

namespace npusim {

constexpr int kWarps = NPUSIM_BLOCK / 32, kStages = NPUSIM_STAGES, kColumns = NPUSIM_COLUMNS;
using Multiplied = StageFormat::Multiplied;  // what the tensor cores are given
// Whether x is computed with before it is multiplied.
constexpr bool kConverted = kNormed || !kSame<X, Multiplied>;
constexpr int kM = static_cast<int>(params.m);
constexpr int kRows = 16 / kParts;  // columns of y of a tile
constexpr int kTiles = static_cast<int>(ceil_div(kColumns, kRows));
constexpr int kRowBytes = StageFormat::kRowBytes;  // of a row in a stage
constexpr int kChunks = kRowBytes / 16;            // of 16 bytes, of it
constexpr int kLoadRows = 32 / kChunks;            // that a load of a warp covers
constexpr int kRowsUsed =
    kTiles * kParts > 1 ? 16 : (kColumns + kLoadRows - 1) / kLoadRows * kLoadRows;  // of a tile
constexpr int kStageBytes = kRowsUsed * (kRowBytes + StageFormat::kSideBytes);
constexpr int kLoads = StageFormat::kLoads;  // of 16 bytes, in a row of W
constexpr int kBlocksOfK = (kLoads + kChunks - 1) / kChunks,
              kMostBlocks = (kBlocksOfK + kWarps - 1) / kWarps;  // that a warp loads of a tile
constexpr int kXRowChunks = static_cast<int>(params.k / 8);      // of 16 bytes, in a row of x
constexpr int kXBlockBytes = StageFormat::kBlockK * 2, kXChunks = kXBlockBytes / 16;
// Loads of 16 bytes by which a lane has its part of a row of x.
constexpr int kXLoads = (kMostBlocks * kXChunks + 31) / 32;
constexpr int kXAt = kWarps * kStages * kStageBytes;  // of x in shared memory
// Bytes of it for a row and a warp. Rows lie so that eight lanes that read one each have no bank
// conflicts.
constexpr int kXRowBytes = kMostBlocks * kXBlockBytes + (kM > 1 ? 16 : 0);
constexpr int kXBytes = kXRowBytes * (kNormed ? 2 : kM);
constexpr int kEach = (kColumns * kM + NPUSIM_BLOCK - 1) / NPUSIM_BLOCK;  // outputs of a thread
static_assert(!kNormed || kM == 1);
static_assert(kXAt + kWarps * kXBytes <= NPUSIM_SHARED);

extern __shared__ __align__(128) unsigned char shared_memory[];
__shared__ float tile_sums[kWarps][kTiles * 16][kM], warp_squares[kWarps], x_scales[kWarps][kM];

// The n-th chunk of x that this lane loads.
inline int x_chunk(int n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = n * 32 + lane;
  return (at / kXChunks * kWarps + warp) * kXChunks + at % kXChunks;
}

// The columns of y of a block.
struct Columns {
  int64_t first;
  int count;

  // The row of W that a row of a tile is.
  int64_t row_of_w(int tile, int row) const {
    const bool exists = tile_row_exists(tile, row);
    return exists ? first + tile * kRows + row % kRows + row / kRows * params.n : 0;
  }
  bool tile_row_exists(int tile, int row) const { return tile * kRows + row % kRows < count; }
};

// A warp's blocks of K of all tiles, in order. kWide: all rows begin on 16 bytes.
template <bool kWide, typename Rows>
struct WeightPipeline {
  using Element = StageFormat::Element;
  static constexpr int kChunkElements = 16 / sizeof(Element);
  static constexpr int kStep = kWarps * kChunks * kChunkElements;  // to the warp's next block
  static constexpr bool kMovesRows = StageFormat::kMovesRows;
  const Rows& weights;
  const Columns columns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int tile = 0, block = threadIdx.x / 32;  // to load next
  // Of that tile, at this lane's chunk: of codes in that block, of floats, of which a lane has more
  // rows and fewer registers, in the first one.
  const Element* rows[kRowsUsed / kLoadRows];
  unsigned rows_exist = 0;                                   // of floats, bit n: rows[n] exists
  int tiles_of_row[kMovesRows ? kRowsUsed / kLoadRows : 1];  // of codes, in which rows[n] exists
  StageFormat::Sides sides;
  unsigned begin, to;  // this lane's place in the first stage, and in the next

  WeightPipeline(const Rows& weights, const Columns& columns, unsigned stages)
      : weights(weights),
        columns(columns),
        begin(own_stages(stages) + StageFormat::chunk_at(lane / kChunks, lane % kChunks)),
        to(begin) {
    find_rows();
  }
  // From this lane's place in a stage to that for rows[n].
  unsigned row_offset(int n) const {
    constexpr int kPeriod = StageFormat::kSwizzlePeriod;
    if constexpr (kPeriod <= kLoadRows) return n * (kLoadRows * kRowBytes);
    const int row = lane / kChunks, chunk = lane % kChunks;
    const unsigned turned = StageFormat::chunk_at(row + n * kLoadRows % kPeriod, chunk) -
                            StageFormat::chunk_at(row, chunk);
    return n * kLoadRows / kPeriod * (kPeriod * kRowBytes) + turned;
  }
  unsigned own_stages(unsigned stages) const { return stages + warp * kStages * kStageBytes; }

  void find_rows() {
    const int chunk = (kMovesRows ? block * kChunks : 0) + lane % kChunks;
    rows_exist = 0;
#pragma unroll
    for (int n = 0; n < kRowsUsed / kLoadRows; ++n) {
      const int row = n * kLoadRows + lane / kChunks;
      rows[n] = weights.row(columns.row_of_w(tile, row)) + chunk * kChunkElements;
      find_existence(n);
    }
    if constexpr (StageFormat::kSideBytes > 0) {
      const int row = lane % 16;
      sides.find(weights, columns.row_of_w(tile, row), columns.tile_row_exists(tile, row));
    }
  }
  void find_existence(int n) {
    const int row = n * kLoadRows + lane / kChunks;
    if constexpr (kMovesRows) {
      tiles_of_row[n] = (columns.count - row % kRows + kRows - 1) / kRows;
    } else {
      rows_exist |= static_cast<unsigned>(columns.tile_row_exists(tile, row)) << n;
    }
  }
  bool row_exists(int n) const {
    if constexpr (kMovesRows) return tile < tiles_of_row[n];
    return (rows_exist >> n & 1) != 0;
  }
  // The rows of the next tile.
  void next_rows() {
    if constexpr (Rows::kEven) {
      const int back = kMovesRows ? (kBlocksOfK - 1 - warp) / kWarps * kStep : 0;
      rows_exist = 0;
#pragma unroll
      for (int n = 0; n < kRowsUsed / kLoadRows; ++n) {
        rows[n] += kRows * Rows::kStride - back;
        if constexpr (!kMovesRows) find_existence(n);
      }
      sides.advance(kRows, columns.tile_row_exists(tile, lane % 16));
    } else {
      find_rows();
    }
  }
  // Starts loading the next block; what does not exist is zero.
  void fill() {
    if (tile < kTiles && block < kBlocksOfK) {
      const bool inside = kLoads % kChunks == 0 || block * kChunks + lane % kChunks < kLoads;
#pragma unroll
      for (int n = 0; n < kRowsUsed / kLoadRows; ++n) {
        const bool exists = inside && row_exists(n);
        const Element* from = rows[n];
        if constexpr (!kMovesRows) from += inside ? block * (kChunks * kChunkElements) : 0;
        const unsigned at = to + row_offset(n);
        if constexpr (kWide) {
          cp_async_evict_first(at, from, exists);
        } else {
          store_shared(at, exists ? gather_chunk(from, 8) : uint4{0, 0, 0, 0});
        }
      }
      if constexpr (StageFormat::kSideBytes > 0) {
        const unsigned own = to - StageFormat::chunk_at(lane / kChunks, lane % kChunks);
        sides.template copy<kRowsUsed>(own + kRowsUsed * kRowBytes, block);
      }
      to = to + kStageBytes == begin + kStages * kStageBytes ? begin : to + kStageBytes;
      block += kWarps;
      if (block >= kBlocksOfK) {
        block = warp;
        if (++tile < kTiles) next_rows();
      } else if constexpr (kMovesRows) {
#pragma unroll
        for (int n = 0; n < kRowsUsed / kLoadRows; ++n) rows[n] += kStep;
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
    if (at < kXRowChunks)
      gains[n] = kWide ? load_kept(norm + at * 8) : gather_chunk(norm + at * 8, 8);
  }
}

// A power of two that brings numbers up to `top` into the range of W, and its inverse.
struct RangeScale {
  float up = 1.0f, down = 1.0f;
};
template <typename W>
RangeScale range_scale_for(float top) {
  constexpr int kWanted = 14;  // exponent of the largest: half of what 16 bits hold
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

// The scales of an output's rows of W.
template <typename Rows>
void read_scales(const Rows& weights, const PendingOutput& output, float (&scales)[kParts]) {
  if (!output.exists) return;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    scales[part] = weights.scale(output.column + part * params.n);
  }
}

// This lane's part of the sum of squares of x, and the factor of the warp's sums.
struct WarpRow {
  float squares = 0.0f, scale = 1.0f;
};

// Stores this warp's blocks of a row of x in shared memory, times the norm's weight.
template <bool kWide, typename X, typename W>
WarpRow load_row(const X* x, const uint4 (&gains)[kXLoads], unsigned to) {
  uint4 loaded[kXLoads];
#pragma unroll
  for (int n = 0; n < kXLoads; ++n) {
    const int at = x_chunk(n);
    loaded[n] = uint4{0, 0, 0, 0};
    if (at < kXRowChunks) loaded[n] = kWide ? load_kept(x + at * 8) : gather_chunk(x + at * 8, 8);
  }
  WarpRow row;
  float v[kConverted ? kXLoads : 1][8], top = 0.0f;
  RangeScale range_scale;
  if constexpr (kConverted) {
#pragma unroll
    for (int n = 0; n < kXLoads; ++n) {
      float gain[8];
      unpack<X>(loaded[n], v[n]);
      if constexpr (kNormed) unpack<W>(gains[n], gain);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if constexpr (kNormed) {
          row.squares += v[n][e] * v[n][e];
          v[n][e] *= gain[e];
        }
        top = fmaxf(top, fabsf(v[n][e]));
      }
    }
    range_scale = range_scale_for<Multiplied>(top);
    row.scale = range_scale.down;
  }
#pragma unroll
  for (int n = 0; n < kXLoads; ++n) {
    const int at = n * 32 + threadIdx.x % 32;
    const unsigned place = to + at * 16;
    if (at >= kMostBlocks * kXChunks) continue;
    if constexpr (kConverted) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[n][e] *= range_scale.up;
    }
    if constexpr (kNormed) {
      uint4 high, low;
      split_high_low<Multiplied>(v[n], high, low);
      store_shared(place, high);
      store_shared(place + kXRowBytes, low);
    } else if constexpr (kConverted) {
      store_shared(place, pack_eight<Multiplied>(v[n]));
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
template <typename Pipeline>
void multiply_blocks(Pipeline& pipeline, unsigned stages, unsigned x_at, float scale) {
  const int g = pipeline.lane / 4, t = pipeline.lane % 4;
  StageFormat::Sums<kRowsUsed, kXRowBytes> sums(pipeline.own_stages(stages), x_at);
  const int blocks = (kBlocksOfK - pipeline.warp + kWarps - 1) / kWarps;
  constexpr float kSumScale = StageFormat::kSumScale;
  scale *= kSumScale;
  unsigned stage = 0;
#pragma unroll 1
  for (int tile = 0; tile < kTiles; ++tile) {
    sums.start(pipeline.weights, pipeline.columns.row_of_w(tile, g),
               pipeline.columns.row_of_w(tile, g + 8));
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      cp_async_wait<kStages - 1>();
      __syncwarp();
      sums.multiply(stage, i, i * kWarps + pipeline.warp);
      __syncwarp();
      pipeline.fill();
      stage = stage + kStageBytes == kStages * kStageBytes ? 0 : stage + kStageBytes;
    }
    if constexpr (kM == 1) {
      if (t > 0) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = sums.sum(half * 2);
        if constexpr (kNormed) sum += sums.sum(half * 2 + 1);
        tile_sums[pipeline.warp][tile * 16 + half * 8 + g][0] = sum * scale;
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = tile * 16 + e / 2 * 8 + g, column = t * 2 + e % 2;
        if (column >= kM) continue;
        const float up = (kConverted ? x_scales[pipeline.warp][column] : 1.0f) * kSumScale;
        tile_sums[pipeline.warp][row][column] = sums.sum(e) * up;
      }
    }
  }
}

// The sums of all warps for an output, and what they are multiplied by.
inline void add_warps(const PendingOutput& output, int column, float (&v)[kParts]) {
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = column / kRows * 16 + part * kRows + column % kRows;
      v[part] += tile_sums[w][row][output.m];
    }
    if constexpr (kNormed) total += warp_squares[w];
  }
  if constexpr (kNormed) {
    const float scale = scalar::rsqrt(total / static_cast<float>(params.k) + kNormEps);
#pragma unroll
    for (int part = 0; part < kParts; ++part) v[part] *= scale;
  }
}

template <bool kWide, typename X, typename W, typename Rows>
void run_multistage(const Rows& weights, const X* x, const Epilogue& epilogue) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns;
  const Columns columns{first, static_cast<int>(smaller<int64_t>(kColumns, params.n - first))};
  const unsigned stages = shared_address(shared_memory), x_at = stages + kXAt + warp * kXBytes;
  const auto output_at = [&](int n) {
    const int at = n * NPUSIM_BLOCK + threadIdx.x;
    return PendingOutput(at / kColumns, first + at % kColumns,
                         at / kColumns < kM && at % kColumns < columns.count);
  };

  PendingOutput output = output_at(0);
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  WeightPipeline<kWide || StageFormat::kAligned, Rows> pipeline(weights, columns, stages);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) pipeline.fill();
  uint4 gains[kXLoads] = {};
  if constexpr (kNormed) load_gains<kWide>(weights.norm(), gains);
  float scales[kParts] = {};
  if constexpr (StageFormat::kScaled) read_scales(weights, output, scales);
  if constexpr (kBiasUnwritten) output.read_bias(epilogue);
  if constexpr (kWeightsUnwritten) wait_on_dependencies();
  if constexpr (!kBiasUnwritten) output.read_bias(epilogue);

  WarpRow row;
#pragma unroll 1
  for (int m = 0; m < kM; ++m) {
    row = load_row<kWide, X, W>(x + m * params.ldx, gains, x_at + m * kXRowBytes);
    if (kM > 1 && lane == 0) x_scales[warp][m] = row.scale;
  }
  __syncwarp();
  output.read_residual(epilogue);
  multiply_blocks(pipeline, stages, x_at, row.scale);
  if constexpr (kNormed) {
    const float sum = warp_sum(row.squares);
    if (lane == 0) warp_squares[warp] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int n = 0; n < kEach; ++n) {
    if (n > 0) {
      output = output_at(n);
      if constexpr (StageFormat::kScaled) read_scales(weights, output, scales);
      output.read_bias(epilogue);
      output.read_residual(epilogue);
    }
    if (!output.exists) continue;
    float v[kParts] = {};
    add_warps(output, static_cast<int>(output.column - first), v);
    if constexpr (StageFormat::kScaled) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) v[part] *= scales[part];
    }
    output.store(epilogue, v);
  }
}

}  // namespace npusim
