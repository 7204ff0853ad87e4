// The entries of linear and of what is linear but for an RMS norm. Included where it is known
// whether x is normalised on the way (kNormed), or begins with rows that a norm behind y begins
// with (kBeforeNorm), or sums are to be divided for a norm before x (kAfterNorm); kNormEps and
// kSlots.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/matmul/epilogue.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;
using MmaType = W;
constexpr int kParts = params.gated ? 2 : 1;  // rows of W for a column of y
// Operands between x and the rest: W, then the norm's weight or what it left.
constexpr int kWeights = params.segments + (kNormed || kBeforeNorm || kAfterNorm ? 1 : 0);
static_assert(!kNormed || NPUSIM_PATH == 0 || NPUSIM_PATH == 5);

// Row `row` of W: segments follow one another.
inline const W* weight_row(void* const* operands, int64_t row) {
  const W* from = static_cast<const W*>(operands[1]) + row * params.ldw[0];
  int64_t first = 0;
#pragma unroll
  for (int i = 1; i < params.segments; ++i) {
    constexpr auto p = params;
    first += p.rows[i - 1];
    if (row >= first) from = static_cast<const W*>(operands[1 + i]) + (row - first) * p.ldw[i];
  }
  return from;
}

// Of what may be read before the wait: all parts of W, the norm's weight, and the bias behind them.
constexpr unsigned kWeightBits = ((1u << (kAfterNorm ? params.segments : kWeights)) - 1) << 1;
constexpr bool kWeightsUnwritten = (unwritten_operands & kWeightBits) == kWeightBits;
constexpr bool kBiasUnwritten = (unwritten_operands >> (1 + kWeights) & 1) != 0;

// Whether all rows of x and W begin on 16 bytes.
constexpr bool is_chunk_aligned(int64_t elements, int64_t size) {
  return elements * size % 16 == 0;
}
constexpr bool rows_are_chunk_aligned() {
  bool all = params.m == 1 || is_chunk_aligned(params.ldx, sizeof(X));
  for (int i = 0; i < params.segments; ++i) all = all && is_chunk_aligned(params.ldw[i], sizeof(W));
  return all;
}
inline bool operands_are_chunk_aligned(void* const* operands) {
  bool all = rows_are_chunk_aligned() && is_aligned(operands[0], 16);
#pragma unroll
  for (int i = 0; i < kWeights; ++i) all = all && is_aligned(operands[1 + i], 16);
  return all;
}

}  // namespace npusim

#include "kernels/cuda/matmul/gemv_epilogue.h"
#include "kernels/cuda/matmul/norm_between.h"
#if NPUSIM_PATH == 5
#include "kernels/cuda/matmul/gemv_multistage.h"
#elif NPUSIM_PATH <= 1
#include "kernels/cuda/matmul/gemv_stream.h"
#else
#include "kernels/cuda/matmul/linear_tile.h"
#endif

namespace npusim {

#if NPUSIM_PATH <= 1 || NPUSIM_PATH == 5
struct Weights {
  void* const* operands;
  const W* row(int64_t row) const { return weight_row(operands, row); }
  const W* norm() const { return static_cast<const W*>(operands[1 + params.segments]); }
  bool wide() const { return operands_are_chunk_aligned(operands); }
};

inline void run(void* const* operands) {
  const Epilogue epilogue(operands, kWeights);
  const X* x = static_cast<const X*>(operands[0]);
#if NPUSIM_PATH == 5
  const Weights weights{operands};
  if (weights.wide()) {
    run_multistage<true, X, W>(weights, x, epilogue);
  } else {
    run_multistage<false, X, W>(weights, x, epilogue);
  }
#elif NPUSIM_PATH == 0
  stream_rows<X, W>(Weights{operands}, x, epilogue);
#else
  stream_columns<W>(Weights{operands}, x, epilogue);
#endif
}
#else

constexpr int64_t kNowhere = -1;  // the end of a row that does not exist

struct Source {
  struct Row {
    const X* x;
    int64_t end;
  };
  struct Column {
    const W* w;
    int64_t end;
  };
  static constexpr int kWeightOperands = kWeights;
  void* const* operands;
  int64_t first_row, first_column, end;
  bool wide;

  Row a_row(int row) const {
    const int64_t at = first_row + row;
    const X* x = static_cast<const X*>(operands[0]);
    return at < params.m ? Row{x + at * params.ldx, end} : Row{x, kNowhere};
  }
  Column b_column(int column) const {
    const auto [output, part] = tile_column(column);
    const int64_t at = first_column + output;
    if (at >= params.n) return {static_cast<const W*>(operands[1]), kNowhere};
    return {weight_row(operands, at + part * params.n), end};
  }
  float scale(int64_t row, int64_t, int) const {
    if constexpr (!kAfterNorm) return 1.0f;
    return row_scale(row_square_sums(operands), row);
  }
#if NPUSIM_PATH == 2 || NPUSIM_PATH == 4
  template <bool kWide>
  void load_a(const Row& row, int64_t k, unsigned to) const {
    copy_chunk<kWide>(to, row.x + k, row.end - k);
  }
  template <bool kWide>
  void load_b(const Column& column, int64_t k, unsigned to) const {
    copy_chunk<kWide>(to, column.w + k, column.end - k);
  }
#else
  float a(const Row& row, int64_t k) const { return k < row.end ? to_float(row.x[k]) : 0.0f; }
  float b(const Column& column, int64_t k) const {
    return k < column.end ? to_float(column.w[k]) : 0.0f;
  }
#endif
};

inline Source source_of(void* const* operands) {
  return {operands, static_cast<int64_t>(blockIdx.x) * kTileRows,
          static_cast<int64_t>(blockIdx.y) * kOutputs, slice_end(),
          params.k % 8 == 0 && operands_are_chunk_aligned(operands)};
}
inline void run(void* const* operands) {
  wait_on_dependencies();
  const Source source = source_of(operands);
  run_tile(source, operands);
  if constexpr (kBeforeNorm) {
    static_assert(!kBeforeNorm || NPUSIM_SPLIT == 1);
    __syncthreads();  // y has been stored
    store_norm_outputs<kTileRows, kOutputs>(operands, source.first_row, source.first_column,
                                            NPUSIM_BLOCK);
  }
}
#endif

}  // namespace npusim

#if NPUSIM_PATH == 4
namespace npusim {

constexpr int kTmaOutputs = NPUSIM_TMA_COLUMNS / kParts;  // columns of y of a tile

// A tile of a block: its only one, or with NPUSIM_PERSISTENT_TILES, of so many, one of every
// gridDim.x.
struct TmaTile {
  static constexpr int kRowTiles = static_cast<int>(ceil_div(params.m, kTileRows));
  int index = static_cast<int>(blockIdx.x);
  int first_row = NPUSIM_PERSISTENT_TILES ? index % kRowTiles * kTileRows : index * kTileRows;
  int first_column =
      (NPUSIM_PERSISTENT_TILES ? index / kRowTiles : static_cast<int>(blockIdx.y)) * kTmaOutputs;

  bool exists() const { return index < NPUSIM_PERSISTENT_TILES; }
  void advance() {
    index += static_cast<int>(gridDim.x);
    first_row = index % kRowTiles * kTileRows;
    first_column = index / kRowTiles * kTmaOutputs;
  }
};

}  // namespace npusim
#include "kernels/cuda/common/tma.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "kernels/cuda/matmul/tma_matmul.h"
#endif
#endif

#if NPUSIM_PATH == 4
#include "kernels/cuda/matmul/tma_entry.h"
#else
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
#if NPUSIM_PATH <= 1 || NPUSIM_PATH == 5
  npusim::launch_dependents();
#endif
  npusim::run(operands);
}
#endif

#if NPUSIM_PATH >= 2 && NPUSIM_PATH <= 4 && NPUSIM_SPLIT > 1
extern "C" __global__ void __launch_bounds__(256) npusim_combine(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::wait_on_dependencies();
  npusim::combine(npusim::source_of(operands), operands);
}
#endif
