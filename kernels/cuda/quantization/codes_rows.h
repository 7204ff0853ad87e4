// Products of few rows of x (2 to 64) with rows of codes on the tensor cores, for the price of
// about one row where memory bounds both.
//
// W is the tensor core's A, 16 rows at a time, and rows of x are columns of its B, eight at a time:
// rows do not depend on each other. A block has NPUSIM_TILES tiles of W and NPUSIM_TOKENS eights of
// x; its warps share K as those of gemv_multistage.h do (NPUSIM_ROW_BYTES is the block of K that
// warps take turns at) and add it up in the same order, so a row's sums have the same bits however
// many rows there are. Rows of W pass through a pipeline of each warp, in stages of 64 bytes; x is
// read where it lies, which is L2, one step of 64 elements ahead.
//
// x is multiplied in its own type, and codes become numbers of it without rounding. That is what
// gemv_codes.h computes as well, but that there elements of bfloat16 below 2^-31 of a row's largest
// lose bits.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/matmul/gemv_epilogue.h"
#include "kernels/cuda/matmul/product_operands.h"
#include "kernels/cuda/quantization/code_pairs.h"
#include "kernels/cuda/quantization/quantized_layout.h"

namespace npusim {

constexpr int kWarps = NPUSIM_BLOCK / 32, kStages = NPUSIM_STAGES, kTiles = NPUSIM_TILES;
constexpr int kTokenTiles = NPUSIM_TOKENS, kTokens = 8 * kTokenTiles;  // of a block
constexpr int kTokenBlocks = static_cast<int>(ceil_div(params.m, kTokens));
constexpr int kRows = 16 / kParts, kColumns = kTiles * kRows;  // of y, of a tile and of a block
constexpr int kStep = 64;                                      // elements of K
constexpr int kStageBytesOfRow = 64, kStepsOfStage = kBytes ? 1 : 2;
constexpr int kStageK = kStep * kStepsOfStage, kStagesOfTurn = NPUSIM_ROW_BYTES / 64;
constexpr int kTurns = static_cast<int>(kCodes / NPUSIM_ROW_BYTES);
constexpr bool kZeros = params.format == kAsymmetric;
// Groups of a stage in a row; bytes of its scales and zero points there, whole words.
constexpr int kGroupsHere = kBytes ? 0 : static_cast<int>(kStageK / kGroupSize);
constexpr int kScaleBytes = kBytes ? 0 : larger(4, 2 * kGroupsHere), kZeroBytes = kZeros ? 4 : 0;
constexpr int kSidesAt = kTiles * 16 * kStageBytesOfRow;
constexpr int kStageBytes = kSidesAt + kTiles * 16 * (kScaleBytes + kZeroBytes);
constexpr int kSumPitch = kTiles * 16 + 4;  // so that sums of a lane's quad lie in other banks
static_assert(params.k % 8 == 0 && kIs16Bit<X> && kCodes % NPUSIM_ROW_BYTES == 0);
static_assert(kWarps * kStages * kStageBytes <= NPUSIM_SHARED);
static_assert(kWarps * kTokens * kSumPitch * 4 <= NPUSIM_SHARED);

extern __shared__ __align__(128) unsigned char shared_memory[];

// Where chunk c of row r lies in a stage, so that lanes have no bank conflicts when they read 16
// bytes of int8, or a word of int4.
inline unsigned stage_chunk_at(int row, int chunk) {
  return row * kStageBytesOfRow + ((chunk ^ (kBytes ? 0 : row >> 1 & 3)) << 4);
}

// The rows of W of a block's tiles.
struct BlockRows {
  int64_t first;  // column of y
  bool exists(int row) const { return first + row / 16 * kRows + row % kRows < params.n; }
  int64_t row_of_w(int row) const {
    if (!exists(row)) return 0;
    return first + row / 16 * kRows + row % kRows + row % 16 / kRows * params.n;
  }
};

// A warp's stages, in order.
template <typename Rows>
struct CodePipeline {
  static constexpr int kEach = kTiles * 2;  // rows that a lane copies from
  static constexpr int kSides = kBytes ? 0 : (kTiles + 1) / 2;
  const uint8_t* codes[kEach];
  const uint8_t* scales[larger(kSides, 1)];
  const uint8_t* zeros[larger(kSides, 1)];
  unsigned exist = 0, sides_exist = 0;  // bit n: the n-th row
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int count = (kTurns - warp + kWarps - 1) / kWarps * kStagesOfTurn;  // of stages
  const unsigned own;
  int next = 0;
  unsigned to = 0;

  CodePipeline(const Rows& weights, const BlockRows& rows, unsigned shared)
      : own(shared + warp * kStages * kStageBytes) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int row = n * 8 + lane / 4;
      codes[n] = weights.whole_row(rows.row_of_w(row)).codes + lane % 4 * 16;
      exist |= static_cast<unsigned>(rows.exists(row)) << n;
    }
#pragma unroll
    for (int n = 0; n < kSides; ++n) {
      const int row = n * 32 + lane;
      const bool there = row < kTiles * 16 && rows.exists(row);
      const QuantizedRow w = weights.whole_row(there ? rows.row_of_w(row) : 0);
      scales[n] = reinterpret_cast<const uint8_t*>(w.scales);
      zeros[n] = w.zeros;
      sides_exist |= static_cast<unsigned>(there) << n;
    }
  }
  // The stage's place among those of all of K.
  int place(int stage) const {
    return (stage / kStagesOfTurn * kWarps + warp) * kStagesOfTurn + stage % kStagesOfTurn;
  }
  // Starts loading the next stage; rows that do not exist are zero.
  void fill() {
    if (next < count) {
      const int at = place(next++);
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        cp_async_evict_first(own + to + stage_chunk_at(n * 8 + lane / 4, lane % 4),
                             codes[n] + at * kStageBytesOfRow, exist >> n & 1);
      }
#pragma unroll
      for (int n = 0; n < kSides; ++n) {
        const int row = n * 32 + lane;
        if (row >= kTiles * 16) break;
        const bool there = sides_exist >> n & 1;
        copy_words<larger(kScaleBytes, 4)>(own + to + kSidesAt + row * kScaleBytes,
                                           scales[n] + at * kGroupsHere * 2, there);
        if constexpr (kZeros) {
          copy_words<4>(own + to + kSidesAt + kTiles * 16 * kScaleBytes + row * 4,
                        zeros[n] + at * kGroupsHere, there);
        }
      }
      to = to + kStageBytes == kStages * kStageBytes ? 0 : to + kStageBytes;
    }
    cp_async_commit();
  }
  // The words that bytes lie in.
  template <int kCount>
  static void copy_words(unsigned to, const uint8_t* from, bool exist) {
    cp_async_words<kCount>(to, from - reinterpret_cast<unsigned long long>(from) % 4, exist);
  }
};

// Of four words of each of the four lanes that share a row, gives lane t every lane's t-th.
inline void transpose_words(unsigned (&v)[4]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      unsigned& low = v[i];
      unsigned& high = v[i | step];
      const bool upper = (t & step) != 0;
      const unsigned received = __shfl_xor_sync(0xffffffffu, upper ? low : high, step);
      low = upper ? received : low;
      high = upper ? high : received;
    }
  }
}

// A step of the block's rows of x, as the tensor cores take them: of bytes, a lane has 16 elements
// that follow one another; of int4, eight of either 32, which lanes exchange.
template <bool kWide>
struct RowsOfX {
  const X* rows[kTokenTiles];
  unsigned exist = 0;
  uint4 loaded[kTokenTiles][2];

  RowsOfX(const X* x, int first_token) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int token = first_token + n * 8 + static_cast<int>(threadIdx.x % 32 / 4);
      rows[n] = x + (token < params.m ? token : 0) * params.ldx;
      exist |= static_cast<unsigned>(token < params.m) << n;
    }
  }
  void load(int64_t k) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = k + (kBytes ? t * 16 + half * 8 : half * 32 + t * 8);
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        loaded[n][half] = uint4{0, 0, 0, 0};
        if (at < params.k && (exist >> n & 1) != 0)
          loaded[n][half] = kWide ? load_kept(rows[n] + at) : gather_chunk(rows[n] + at, 8);
      }
    }
  }
};

// Where the scales and zero points of a lane's rows, g and g + 8 of each tile, lie in the words
// that stages have beside the rows.
struct CodePlaces {
  static constexpr bool kEven = kBytes || kGroups % 4 == 0;  // all rows begin on words of either
  unsigned first[kEven ? 1 : kTiles * 2] = {};               // in elements of a word of zero points

  template <typename Rows>
  CodePlaces(const Rows& weights, const BlockRows& rows) {
    if constexpr (!kEven) {
#pragma unroll
      for (int i = 0; i < kTiles * 2; ++i) {
        const QuantizedRow w = weights.whole_row(rows.row_of_w(i * 8 + threadIdx.x % 32 / 4));
        first[i] = reinterpret_cast<unsigned long long>(w.zeros) % 4;
      }
    }
  }
  unsigned first_of(int i) const { return first[kEven ? 0 : i]; }
  // Of row g of half tile i, in the stage that is the `place`-th of all of K.
  float scale(unsigned stage, int i, int place, int group) const {
    const int index = kGroupsHere < 2 ? static_cast<int>(first_of(i) + place) % 2 : group;
    const int row = i * 8 + threadIdx.x % 32 / 4;
    const unsigned word = load_shared_word(stage + kSidesAt + row * kScaleBytes + index / 2 * 4);
    return to_float(float16{static_cast<unsigned short>(index % 2 == 0 ? word : word >> 16)});
  }
  // Less the 8 that codes are already less.
  float zero(unsigned stage, int i, int place, int group) const {
    const int index =
        group + (kGroupsHere < 4 ? static_cast<int>(first_of(i) + place * kGroupsHere) % 4 : 0);
    const int row = i * 8 + threadIdx.x % 32 / 4;
    const unsigned word =
        load_shared_word(stage + kSidesAt + kTiles * 16 * kScaleBytes + row * kZeroBytes);
    return static_cast<float>(word >> (index * 8) & 0xff) * kZeroStep - 8.0f;
  }
};

struct RowSums {
  float sums[kBytes ? 2 : 1][kTiles][kTokenTiles][4];
  float part[kBytes ? 1 : kTiles][kBytes ? 1 : kTokenTiles][4], of_x[kTokenTiles][4];
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  RowSums() {
#pragma unroll
    for (int i = 0; i < (kBytes ? 2 : 1); ++i) clear(sums[i]);
    if constexpr (!kBytes) start_group();
  }
  template <int kFirst, int kSecond>
  static void clear(float (&v)[kFirst][kSecond][4]) {
#pragma unroll
    for (int i = 0; i < kFirst * kSecond * 4; ++i)
      v[i / 4 / kSecond][i / 4 % kSecond][i % 4] = 0.0f;
  }
  void start_group() {
    clear(part);
#pragma unroll
    for (int i = 0; i < kTokenTiles * 4; ++i) of_x[i / 4][i % 4] = 0.0f;
  }

  void multiply_bytes(unsigned stage, const uint4 (&x)[kTokenTiles][2]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 low = load_shared(stage + stage_chunk_at(tile * 16 + g, t));
      const uint4 high = load_shared(stage + stage_chunk_at(tile * 16 + g + 8, t));
      const unsigned w[4][2] = {{low.x, high.x}, {low.y, high.y}, {low.z, high.z}, {low.w, high.w}};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto pair = [](unsigned word, int half) {
          return kFloatCodes ? float8_pair_as<X>(word, half) : byte_pair_as<X>(word, half);
        };
        const unsigned a0 = pair(w[i][0], 0), a1 = pair(w[i][1], 0);
        const unsigned a2 = pair(w[i][0], 1), a3 = pair(w[i][1], 1);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const uint4& b = x[n][i / 2];
          mma_16x8x16<X>(sums[i % 2][tile][n], a0, a1, a2, a3, i % 2 == 0 ? b.x : b.z,
                         i % 2 == 0 ? b.y : b.w);
        }
      }
    }
  }

  // Step `step` of a stage.
  void multiply_nibbles(unsigned stage, int step, int place, const CodePlaces& places,
                        const uint4 (&x)[kTokenTiles][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int chunk = step * 2 + half;
      unsigned b[kTokenTiles][4];
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const uint4& v = x[n][half];
        b[n][0] = v.x;
        b[n][1] = v.y;
        b[n][2] = v.z;
        b[n][3] = v.w;
        transpose_words(b[n]);
        if constexpr (kZeros) {
          constexpr unsigned kOne = kSame<X, bfloat16> ? 0x3f803f80u : 0x3c003c00u;
          mma_16x8x16<X>(of_x[n], kOne, kOne, kOne, kOne, b[n][0], b[n][1]);
          mma_16x8x16<X>(of_x[n], kOne, kOne, kOne, kOne, b[n][2], b[n][3]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        unsigned a[4][2];
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const unsigned word =
              load_shared_word(stage + stage_chunk_at(tile * 16 + g + 8 * side, chunk) + t * 4);
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i][side] = nibble_pair_as<X>(word, i);
        }
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          mma_16x8x16<X>(part[tile][n], a[0][0], a[0][1], a[1][0], a[1][1], b[n][0], b[n][1]);
          mma_16x8x16<X>(part[tile][n], a[2][0], a[2][1], a[3][0], a[3][1], b[n][2], b[n][3]);
        }
      }
      constexpr int kChunksOfGroup = static_cast<int>(kGroupSize / 32);
      if ((chunk + 1) % kChunksOfGroup == 0) {
        end_group(stage, chunk / kChunksOfGroup, place, places);
        start_group();
      }
    }
  }
  // Adds the sums of a group, the `group`-th of a stage, times its scales.
  void end_group(unsigned stage, int group, int place, const CodePlaces& places) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = places.scale(stage, tile * 2 + half, place, group);
        const float above = kZeros ? places.zero(stage, tile * 2 + half, place, group) : 0.0f;
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const float v = part[tile][n][e];
            sums[0][tile][n][e] += scale * (kZeros ? v - above * of_x[n][e] : v);
          }
        }
      }
    }
  }
  float sum(int tile, int n, int e) const {
    return kBytes ? sums[0][tile][n][e] + sums[kBytes ? 1 : 0][tile][n][e] : sums[0][tile][n][e];
  }
};

// The sums of all warps for an output of the block, times the scales of its rows.
template <typename Rows>
void add_warps(const Rows& weights, const PendingOutput& output, int token, int column,
               const float* sums, float (&v)[kParts]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int row = column / kRows * 16 + part * kRows + column % kRows;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v[part] += sums[(w * kTokens + token) * kSumPitch + row];
    if constexpr (kBytes) v[part] *= weights.scale(output.column + part * params.n);
  }
}

template <bool kWide, typename Rows>
void run_rows(const Rows& weights, const X* x, const Epilogue& epilogue) {
  const int first_token = static_cast<int>(blockIdx.x % kTokenBlocks) * kTokens;
  const BlockRows rows{static_cast<int64_t>(blockIdx.x / kTokenBlocks) * kColumns};
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  CodePipeline<Rows> pipeline(weights, rows, shared_address(shared_memory));
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) pipeline.fill();
  const CodePlaces places(weights, rows);
  if constexpr (kWeightsUnwritten) wait_on_dependencies();

  RowsOfX<kWide> next(x, first_token);
  RowSums sums;
  next.load(static_cast<int64_t>(pipeline.place(0)) * kStageK);
  unsigned at = 0;
#pragma unroll 1
  for (int stage = 0; stage < pipeline.count; ++stage) {
    cp_async_wait<kStages - 2>();
    __syncwarp();
    pipeline.fill();
    const int place = pipeline.place(stage);
#pragma unroll
    for (int step = 0; step < kStepsOfStage; ++step) {
      uint4 now[kTokenTiles][2];
#pragma unroll
      for (int i = 0; i < kTokenTiles * 2; ++i) now[i / 2][i % 2] = next.loaded[i / 2][i % 2];
      const int64_t k = step + 1 < kStepsOfStage
                            ? static_cast<int64_t>(place) * kStageK + kStep
                            : static_cast<int64_t>(pipeline.place(stage + 1)) * kStageK;
      if (step + 1 < kStepsOfStage || stage + 1 < pipeline.count) next.load(k);
      if constexpr (kBytes) {
        sums.multiply_bytes(pipeline.own + at, now);
      } else {
        sums.multiply_nibbles(pipeline.own + at, step, place, places, now);
      }
    }
    __syncwarp();
    at = at + kStageBytes == kStages * kStageBytes ? 0 : at + kStageBytes;
  }
  cp_async_wait<0>();
  __syncthreads();  // nobody reads stages any more

  float* all = reinterpret_cast<float*>(shared_memory);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int token = n * 8 + sums.t * 2 + e % 2, row = tile * 16 + e / 2 * 8 + sums.g;
        all[(pipeline.warp * kTokens + token) * kSumPitch + row] = sums.sum(tile, n, e);
      }
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < kColumns * kTokens; i += NPUSIM_BLOCK) {
    const int column = i % kColumns, token = i / kColumns;
    if (first_token + token >= params.m) break;
    PendingOutput output(first_token + token, rows.first + column, true);
    if (!output.exists) continue;
    output.read_bias(epilogue);
    output.read_residual(epilogue);
    float v[kParts] = {};
    add_warps(weights, output, token, column, all, v);
    output.store(epilogue, v);
  }
}

}  // namespace npusim
