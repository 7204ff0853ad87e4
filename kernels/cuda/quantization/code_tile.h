// Which tile of y a block of tma_codes.h computes, and how its columns are stored.
#pragma once
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/linear_tile.h"
#include "kernels/cuda/quantization/code_pairs.h"
#include "kernels/cuda/quantization/quantized_operands.h"

namespace npusim {

constexpr int kGroups128 = NPUSIM_GROUPS;  // warpgroups, of 64 rows of W
constexpr int kTokens = NPUSIM_TOKENS;     // rows of x of a tile
constexpr int kTileWeights = 64 * kGroups128, kTileOutputs = kTileWeights / kParts;
constexpr int kClusterK = NPUSIM_CLUSTER_K;  // blocks of a cluster, with a slice of K each
// Slices are whole blocks of codes; beyond K, codes and x are zero.
constexpr int kCodeBlockK = kBytes ? 128 : 256;  // elements in 128 bytes of codes
constexpr int64_t kClusterSlice =
    ceil_div(ceil_div(params.k, kClusterK), kCodeBlockK) * kCodeBlockK;
constexpr bool kSumsGroups = NPUSIM_SUMS_GROUPS;  // of int4, else rounded elements
// What sums of bytes are multiplied by before their scale.
constexpr float kByteFactor = kFloatCodes ? 1.0f : kByteScale<X>;
constexpr int kLoadRows = 32;  // of W; of a gated product, a warpgroup has as many of either part
constexpr bool kOneTokenTile = params.m <= kTokens;  // W is read once, and leaves L2 first

// A row of W in its segment.
struct SegmentRow {
  int segment, row;
};

struct CodeTile {
  int first_token = static_cast<int>(blockIdx.x) * kTokens;
  int first_column = static_cast<int>(blockIdx.y) * kTileOutputs;
  int k_rank = static_cast<int>(blockIdx.z);
  int64_t begin = k_rank * kClusterSlice;  // of K

  // Steps of 64 elements, of whole blocks.
  int steps() const {
    const int64_t left = smaller(kClusterSlice, params.k - begin);
    return static_cast<int>(ceil_div(left, kCodeBlockK)) * (kCodeBlockK / 64);
  }
  // The first row of W of a load; the launch rule sees to it that all of them are of one segment.
  SegmentRow segment_row(int load) const {
    const int64_t at = kParts == 2 ? first_column + load / 2 * kLoadRows + load % 2 * params.n
                                   : first_column + load * kLoadRows;
    int64_t first = 0, before = 0;
    int segment = 0;
#pragma unroll
    for (int i = 1; i < params.segments; ++i) {
      constexpr auto p = params;
      first += p.rows[i - 1];
      if (at < first) continue;
      segment = i;
      before = first;
    }
    return {segment, static_cast<int>(at - before)};
  }
  // The column of y and the part that a row of the tile is for.
  TileColumn column_of(int row) const {
    if constexpr (kParts == 1) return {first_column + row, 0};
    return {first_column + row / 64 * kLoadRows + row % kLoadRows, row / kLoadRows % 2};
  }
  // Where the sums of columns of y from `column` on are in a row of the tile's, which is inverse.
  static int row_of(int column, int part) {
    if constexpr (kParts == 1) return column;
    return column / kLoadRows * 64 + part * kLoadRows + column % kLoadRows;
  }
};

// Eight columns of y, with what is multiplied and added to their sums.
struct StoredColumns {
  VectorEpilogue epilogue;
  int64_t first;
  int count;
  float scales[kBytes ? kParts : 1][8], bias[8], second_bias[8];

  // Scales of the columns' rows of W, of either part, with biases `biases_at` behind them.
  StoredColumns(void* const* operands, int first_column, const float* part, const float* second,
                int biases_at)
      : epilogue(Epilogue(operands, params.segments)),
        first(first_column),
        count(static_cast<int>(smaller<int64_t>(params.n - first_column, 8))) {
    epilogue.wide =
        epilogue.wide && params.ldy % 8 == 0 && (!params.residual || params.ldr % 8 == 0);
    load_floats<8>(part + biases_at, bias);
    load_floats<8>(second + biases_at, second_bias);
    if constexpr (kBytes) {
      load_floats<8>(part, scales[0]);
      load_floats<8>(second, scales[kParts - 1]);
    }
  }
  void store(int64_t row, float (&v)[kParts][8]) const {
    if constexpr (kBytes) {
#pragma unroll
      for (int e = 0; e < 8 * kParts; ++e)
        v[e / 8][e % 8] = v[e / 8][e % 8] * kByteFactor * scales[e / 8][e % 8];
    }
    if constexpr (kParts == 2) {
      float y[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        y[e] = Epilogue::finished_gated(v[0][e], v[kParts - 1][e], bias[e], second_bias[e]);
      }
      epilogue.store(row * params.ldy + first, count, y);
    } else {
      const int64_t at = row * params.ldr + first;
      epilogue.finish(row * params.ldy + first, at, count, epilogue.residual(at, count), bias,
                      v[0]);
    }
  }
};

}  // namespace npusim
