// y = act(x · Wᵀ + bias + residual), or its gated form, over rows of W as a checkpoint stores them.
//
// NPUSIM_PATH says how, decided beside the launch geometry (codegen/launch_products.py):
//   0  one row of x: warps stream rows of W (mma_stream.h), sums by multiply-adds
//   1  few rows of x, 16-bit: warps stream eight rows of W at a time through the tensor cores
//   2  many rows, 16-bit: tiles on the tensor cores
//   3  anything else: tiles by multiply-adds
// Paths 2 and 3 may cut K into NPUSIM_SPLIT spans, whose sums a second launch adds up in order.
#include "kernels/cuda/mma_epilogue.h"
#include "kernels/cuda/mma_plain.h"
#include "kernels/cuda/mma_tile.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;
constexpr int kParts = params.gated ? 2 : 1;  // rows of W for a column of y

// Row `row` of W: segments follow one another.
inline const W* weight_row(void* const* operands, int64_t row) {
  const W* from = static_cast<const W*>(operands[1]) + row * params.ldw[0];
  int64_t first = 0;
#pragma unroll
  for (int i = 1; i < params.segments; ++i) {
    constexpr abi::LinearParams p = params;
    first += p.rows[i - 1];
    if (row >= first) from = static_cast<const W*>(operands[1 + i]) + (row - first) * p.ldw[i];
  }
  return from;
}

}  // namespace npusim

#if NPUSIM_PATH <= 1
#include "kernels/cuda/mma_stream.h"
#endif

namespace npusim {

#if NPUSIM_PATH <= 1
struct Weights {
  void* const* operands;
  const W* row(int64_t row) const { return weight_row(operands, row); }
};

inline void run(void* const* operands) {
  const Epilogue epilogue(operands, params.segments);
  const X* x = static_cast<const X*>(operands[0]);
#if NPUSIM_PATH == 0
  stream_rows<X, W>(Weights{operands}, x, epilogue);
#else
  stream_columns<W>(Weights{operands}, x, epilogue);
#endif
}
#else

// Operands as both kinds of tile want them. A tile of a gated product has columns of both halves
// of W: `column_of_weight` says which row of W a column of the tile is.
constexpr int kTileRows = NPUSIM_TILE_ROWS, kTileColumns = NPUSIM_TILE_COLUMNS;
constexpr int kOutputs = kTileColumns / kParts;  // columns of y of a tile
constexpr int64_t kSpan = ceil_div(ceil_div(params.k, NPUSIM_SPLIT), 64) * 64;

struct Source {
  using Row = const X*;
  using Column = const W*;
  void* const* operands;
  int64_t first_row, first_column, end;

  Row a_row(int row) const {
    const int64_t at = first_row + row;
    return at < params.m ? static_cast<const X*>(operands[0]) + at * params.ldx : nullptr;
  }
#if NPUSIM_PATH == 2
  // float16 of a warp's columns are of either part, so that a lane holds both sums of an output.
  Column b_column(int column) const {
    constexpr int kWarp = kTileColumns / NPUSIM_WARPS_N, kHalf = kWarp / kParts;
    const int64_t output = column / kWarp * kHalf + column % kHalf + first_column;
    if (output >= params.n) return nullptr;
    return weight_row(operands, output + column % kWarp / kHalf * params.n);
  }
  void load_a(Row row, int64_t k, unsigned to) const { copy_chunk(to, row + k, row ? end - k : 0); }
  void load_b(Column column, int64_t k, unsigned to) const {
    copy_chunk(to, column + k, column ? end - k : 0);
  }
#else
  // The columns of the second part follow those of the first.
  Column b_column(int column) const {
    const int64_t output = column % kOutputs + first_column;
    if (output >= params.n) return nullptr;
    return weight_row(operands, output + column / kOutputs * params.n);
  }
  float a(Row row, int64_t k) const { return row ? to_float(row[k]) : 0.0f; }
  float b(Column column, int64_t k) const { return column ? to_float(column[k]) : 0.0f; }
#endif
};

// Stores the sums of an output and its right neighbour, or leaves them to `npusim_combine`.
struct Output {
  Epilogue epilogue;
  float* partial;  // [NPUSIM_SPLIT][m][parts][n]

  void store(int64_t row, int64_t column, const float (&v)[kParts][2]) const {
    if (row >= params.m || column >= params.n) return;
    const bool both = column + 1 < params.n;
    if constexpr (NPUSIM_SPLIT > 1) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float* to = partial + ((blockIdx.z * params.m + row) * kParts + part) * params.n + column;
        to[0] = v[part][0];
        if (both) to[1] = v[part][1];
      }
      return;
    }
    float y[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !both) break;
      y[i] = finish(row, column + i, v[0][i], v[kParts - 1][i]);
    }
    epilogue.store_pair(row * params.ldy + column, y[0], y[1], both);
  }
  float finish(int64_t row, int64_t column, float first, float second) const {
    if constexpr (kParts == 2) return epilogue.finish_gated(first, second, column, params.n);
    return epilogue.finish(first, row * params.ldr, column);
  }
};

extern __shared__ __align__(128) unsigned char shared_memory[];

inline void run(void* const* operands) {
  const int64_t begin = blockIdx.z * kSpan;
  const int64_t end = smaller<int64_t>(begin + kSpan, params.k);
  const Source source{operands, static_cast<int64_t>(blockIdx.x) * kTileRows,
                      static_cast<int64_t>(blockIdx.y) * kOutputs, end};
  const Output output{Epilogue(operands, params.segments),
                      static_cast<float*>(operands[NPUSIM_ARGUMENTS - 1])};
#if NPUSIM_PATH == 2
  using Product =
      Tile<W, kTileRows, kTileColumns, NPUSIM_WARPS_M, NPUSIM_WARPS_N, NPUSIM_STAGES, false>;
  Product tile;
  tile.run(source, begin, end, shared_memory);
  constexpr int kBlocks = Product::kBlocksN / kParts;
#pragma unroll
  for (int i = 0; i < Product::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        constexpr int kWarp = Product::kWarpColumns;
        const int in_tile = Product::column_of(j);
        const int64_t column = in_tile / kWarp * (kWarp / kParts) + in_tile % kWarp;
        float v[kParts][2];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          v[part][0] = tile.sums[i][j + part * kBlocks][half * 2];
          v[part][1] = tile.sums[i][j + part * kBlocks][half * 2 + 1];
        }
        output.store(source.first_row + Product::row_of(i) + half * 8, source.first_column + column,
                     v);
      }
    }
  }
#else
  using Product = PlainTile<float, kTileRows, kTileColumns, true, true>;
  Product tile;
  tile.run(source, begin, end, *reinterpret_cast<typename Product::Shared*>(shared_memory));
  constexpr int kColumns = Product::kColumnsEach / kParts;
  static_assert(kParts == 1 || kColumns % 4 == 0);
#pragma unroll
  for (int i = 0; i < Product::kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      float v[kParts][2];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        v[part][0] = tile.sums[i][j + part * kColumns];
        v[part][1] = tile.sums[i][j + 1 + part * kColumns];
      }
      output.store(source.first_row + Product::row_of(i),
                   source.first_column + Product::column_of(j), v);
    }
  }
#endif
}

// Adds up the spans of an output, in their order.
inline void combine(void* const* operands) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= params.m * params.n) return;
  const int64_t row = at / params.n, column = at % params.n;
  const float* partial = static_cast<const float*>(operands[NPUSIM_ARGUMENTS - 1]);
  float sums[kParts] = {};
#pragma unroll
  for (int64_t span = 0; span < NPUSIM_SPLIT; ++span) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      sums[part] += partial[((span * params.m + row) * kParts + part) * params.n + column];
    }
  }
  const Output output{Epilogue(operands, params.segments), nullptr};
  output.epilogue.store(row * params.ldy + column,
                        output.finish(row, column, sums[0], sums[kParts - 1]));
}
#endif

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}

#if NPUSIM_PATH >= 2 && NPUSIM_SPLIT > 1
extern "C" __global__ void __launch_bounds__(256) npusim_combine(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::combine(operands);
}
#endif
