// An RMS norm split between two matrix products of many rows. The product before it (kBeforeNorm)
// stores y times the norm's weight beside y, and the squares of y summed over the columns of each
// tile: [slot][row], slot t being of column tile t, and those after the last tile zero. The product
// after it (kAfterNorm) multiplies these scaled rows, and each row of its sums by the norm's
// factor.
#pragma once
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/linear_operands.h"

namespace npusim {

inline const float* row_square_sums(void* const* operands) {
  return static_cast<const float*>(operands[kAfterNorm ? kWeights : 0]);
}

// The norm's factor of a row, given the sum of its squares.
inline float row_scale(float squares) {
  return fast_rsqrt(squares * (1.0f / static_cast<float>(params.k)) + kNormEps);
}
inline float row_scale(const float* squares, int64_t row) {
  float sum = 0.0f;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) sum += squares[slot * params.m + row];
  return row_scale(sum);
}

// The norm's factors of the sixteen rows that a warp has of a warpgroup's tile: lanes r and r + 16
// read the squares of row r. kDefers: they are added up only when `finish_read` is called, so that
// nothing waits for the loads before.
template <bool kDefers>
struct RowScales {
  static constexpr int kReads = kSlots > 0 ? kSlots / 2 : 1;
  float deferred[kDefers ? kReads : 1];
  float own = 1.0f;
  int first_row = -1;

  // Reads the squares, after wait_on_dependencies(), unless the tile before had the same rows.
  void read(const float* squares, int tile_row) {
    if constexpr (kAfterNorm) {
      if (tile_row == first_row) return;
      first_row = tile_row;
      const int lane = static_cast<int>(threadIdx.x % 32);
      const int row = tile_row + static_cast<int>(threadIdx.x / 32) * 16 + lane % 16;
      const float* slot = squares + lane / 16 * params.m + smaller<int64_t>(row, params.m - 1);
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kReads; ++i) {
        const float read = slot[i * 2 * params.m];
        if constexpr (kDefers) {
          deferred[i] = read;
        } else {
          sum += read;
        }
      }
      if constexpr (!kDefers) fold(sum);
    }
  }
  void finish_read() {
    if constexpr (kAfterNorm && kDefers) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kReads; ++i) sum += deferred[i];
      fold(sum);
    }
  }
  template <typename Sums>
  void scale(Sums& sums) const {
    if constexpr (kAfterNorm) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = static_cast<int>(threadIdx.x % 32 / 4) + half * 8;
        const float factor = __shfl_sync(0xffffffffu, own, row);
#pragma unroll
        for (int j = 0; j < Sums::kBlocksN; ++j) {
          sums.sum(j)[half * 2] *= factor;
          sums.sum(j)[half * 2 + 1] *= factor;
        }
      }
    }
  }

 private:
  void fold(float sum) { own = row_scale(sum + __shfl_xor_sync(0xffffffffu, sum, 16)); }
};

// What a product before a norm stores beside y.
struct NormOutputs {
  using Y = Epilogue::Y;
  static constexpr int kY = 1 + kWeights + (params.has_bias ? 1 : 0) + (params.residual ? 1 : 0);
  const W* norm;
  Y* scaled;
  float* squares;

  explicit NormOutputs(void* const* operands)
      : norm(static_cast<const W*>(operands[kBeforeNorm ? kWeights : 0])),
        scaled(static_cast<Y*>(operands[kBeforeNorm ? kY + 1 : 0])),
        squares(static_cast<float*>(operands[kBeforeNorm ? kY + 2 : 0])) {}

  // Scales eight columns of a row, of which `count` exist; returns the sum of their squares.
  float store(int64_t row, int64_t column, int count, bool wide, const float (&y)[8],
              const uint4& weights) const {
    float sum = 0.0f;
    if constexpr (kBeforeNorm) {
      const int64_t at = row * params.n + column;
      float w[8], v[8];
      unpack<W>(weights, w);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (e < count) sum += y[e] * y[e];
        v[e] = y[e] * w[e];
      }
      if (wide && count >= 8) {
        *reinterpret_cast<uint4*>(scaled + at) = pack_eight<Y>(v);
        return sum;
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (e < count) scaled[at + e] = encode<Y>(v[e]);
      }
    }
    return sum;
  }
  // The sum of eight sums of eight columns, of which a lane of a quad has the first and the fifth
  // from its own on: what tiles of any size leave of 64 columns.
  static float quad_sum(float first, float fifth) {
    float sum = first + fifth;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return sum;
  }
  // The sum of a row's squares in column tile `tile` of `kTiles`.
  template <int kTiles>
  void store_squares(int64_t row, int tile, float sum) const {
    if (row >= params.m || tile >= kTiles) return;
#pragma unroll 1
    for (int slot = tile; slot < kSlots; slot += kTiles) {
      squares[slot * params.m + row] = slot == tile ? sum : 0.0f;
    }
  }
};

// Stores the same for a tile of y that this block has stored, a thread a row: rare, so it is slow.
template <int kRows, int kColumns>
void store_norm_outputs(void* const* operands, int64_t first_row, int64_t first_column,
                        int threads) {
  constexpr int kTiles = static_cast<int>(ceil_div(params.n, kColumns));
  static_assert(kTiles <= kSlots);
  const NormOutputs norm_outputs(operands);
  const Epilogue epilogue(operands, kWeights);
  const int64_t end = smaller<int64_t>(first_column + kColumns, params.n);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows; i += threads) {
    const int64_t row = first_row + i;
    if (row >= params.m) break;
    float sum = 0.0f;
#pragma unroll 1
    for (int64_t column = first_column; column < end; ++column) {
      const float y = to_float(epilogue.y[row * params.ldy + column]);
      sum += y * y;
      norm_outputs.scaled[row * params.n + column] =
          encode<NormOutputs::Y>(y * to_float(norm_outputs.norm[column]));
    }
    norm_outputs.store_squares<kTiles>(row, static_cast<int>(first_column / kColumns), sum);
  }
}

}  // namespace npusim
