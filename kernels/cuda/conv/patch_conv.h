// Convolution of few channels on the tensor cores, wherever they lie. A block walks over tiles of 8
// by 16 positions: it gathers the patch of the input that a tile's windows cover, and the tensor
// core's A is read from it as it lies, since the taps of a window are neighbours there.
//
// K runs over channels, depths and heights of taps ("lines"), and inside a line over its taps,
// filled up to a power of two. What is filled up is zero in A and in B.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/conv/conv_operands.h"
#include "kernels/cuda/conv/conv_vectors.h"
#include "kernels/cuda/matmul/epilogue.h"

namespace npusim {

constexpr int kTileHeight = 8, kTileWidth = 16, kTileColumns = 64;
constexpr int kThreads = NPUSIM_BLOCK, kWarps = kThreads / 32;
constexpr int kBlocksM = kTileHeight / kWarps, kBlocksN = kTileColumns / 8;
constexpr int kWide = static_cast<int>(params.kernel[2]),
              kHigh = static_cast<int>(params.kernel[1]);
constexpr int kDeep = static_cast<int>(params.kernel[0]);
constexpr int kTapsOfLine = kWide <= 2 ? 2 : kWide <= 4 ? 4 : kWide <= 8 ? 8 : 16;
constexpr int kLines = static_cast<int>(kChannels) * kDeep * kHigh;
constexpr int kSteps = static_cast<int>(ceil_div(kLines * kTapsOfLine, 16));
constexpr int kStrideY = static_cast<int>(params.stride[1]);
constexpr int kStrideX = static_cast<int>(params.stride[2]);
constexpr int kPatchHeight =
    (kTileHeight - 1) * kStrideY + (kHigh - 1) * static_cast<int>(params.dilation[1]) + 1;
constexpr int kPatchWidth = (kTileWidth - 1) * kStrideX + kTapsOfLine + kTapsOfLine % 2;
constexpr int kPatchLines = static_cast<int>(kChannels) * kDeep * kPatchHeight;
constexpr int kPieces = static_cast<int>(ceil_div(kPatchWidth, 32));  // of a line, a lane's loads
// Of more lines than eight the places alone would not stay in registers.
constexpr int kMostLines = smaller(8, 12 / kPieces);
constexpr int kLinesAtOnce =
    larger(1, smaller(kMostLines, static_cast<int>(ceil_div(kPatchLines, kWarps))));
constexpr int64_t kColumnTiles = ceil_div(kColumns, kTileColumns);
constexpr int kTilesX = static_cast<int>(ceil_div(params.out_size[2], kTileWidth));
constexpr int kTilesY = static_cast<int>(ceil_div(params.out_size[1], kTileHeight));
constexpr int64_t kTiles = params.batch * params.out_size[0] * kTilesY * kTilesX;
static_assert(params.x_strides[0] < 0x7fffffff);
static_assert(kWide <= 16 && kBlocksM * kWarps == kTileHeight && params.dilation[2] == 1);

// Shared memory: B, [K][64 columns] with chunks swizzled as in MmaTile; the vectors; then the
// patch.
using Vectors = TileVectors<kSteps * 16 * kTileColumns * 2, kTileColumns>;
constexpr int kPatchAt = kSteps * 16 * kTileColumns * 2 + Vectors::kBytes;

struct PatchTile {
  int64_t image;  // batch item and depth
  int y, x;       // the first position

  explicit PatchTile(int64_t index)
      : image(index / (kTilesY * kTilesX)),
        y(static_cast<int>(index / kTilesX % kTilesY) * kTileHeight),
        x(static_cast<int>(index % kTilesX) * kTileWidth) {}
};

inline void load_weights(const W* w, int64_t first_column) {
  const unsigned to = shared_address(shared_memory);
  for (int at = threadIdx.x; at < kSteps * 16 * 8; at += kThreads) {
    const int row = at / 8, chunk = at % 8, line = row / kTapsOfLine, tap = row % kTapsOfLine;
    const int channel = line / (kDeep * kHigh);
    const int k = (line % (kDeep * kHigh) * kWide + tap) * static_cast<int>(kChannels) + channel;
    const int64_t column = first_column + chunk * 8;
    const bool exists = line < kLines && tap < kWide && column < Weights::kAll;
    copy_chunk<true>(to + row * (kTileColumns * 2) + ((chunk ^ (row & 7)) << 4),
                     exists ? Weights::column(w, column) + k * kPanel : w, exists ? 8 : 0);
  }
  cp_async_commit();
}

// Gathers what the windows of a tile cover; zeros where that is padding. A warp takes whole lines,
// a lane every 32nd element; several lines are asked for before the first is stored.
inline void load_patch(const X* x, const PatchTile& tile) {
  constexpr int kDepths = static_cast<int>(params.out_size[0]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int depth = static_cast<int>(tile.image % kDepths);
  const int first_y = tile.y * kStrideY - static_cast<int>(params.pad[1]);
  const int first_x = tile.x * kStrideX - static_cast<int>(params.pad[2]);
  const int first_z = depth * static_cast<int>(params.stride[0]) - static_cast<int>(params.pad[0]);
  uint16_t* to = reinterpret_cast<uint16_t*>(shared_memory + kPatchAt);
  const X* from = x + tile.image / kDepths * params.x_strides[0] +
                  static_cast<int64_t>(first_x + lane) * params.x_strides[4];
#pragma unroll 1
  for (int first = warp; first < kPatchLines; first += kWarps * kLinesAtOnce) {
    uint16_t loaded[kLinesAtOnce][kPieces];
#pragma unroll
    for (int i = 0; i < kLinesAtOnce; ++i) {
      const int line = first + i * kWarps, plane = line / kPatchHeight;
      const int in_y = first_y + line % kPatchHeight;
      const int in_z = first_z + plane % kDeep * static_cast<int>(params.dilation[0]);
      const bool exists = line < kPatchLines && in_y >= 0 && in_y < params.in_size[1] &&
                          in_z >= 0 && in_z < params.in_size[0];
      const int start = plane / kDeep * static_cast<int>(params.x_strides[1]) +
                        in_z * static_cast<int>(params.x_strides[2]) +
                        in_y * static_cast<int>(params.x_strides[3]);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int column = piece * 32 + lane, in_x = first_x + column;
        const bool inside = exists && column < kPatchWidth && in_x >= 0 && in_x < params.in_size[2];
        loaded[i][piece] = 0;
        if (inside) loaded[i][piece] = from[start + piece * 32 * params.x_strides[4]].bits;
      }
    }
#pragma unroll
    for (int i = 0; i < kLinesAtOnce; ++i) {
      const int line = first + i * kWarps;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int column = piece * 32 + lane;
        if (line < kPatchLines && column < kPatchWidth) {
          to[line * kPatchWidth + column] = loaded[i][piece];
        }
      }
    }
  }
}

// Two taps of a line for the position `column` of a tile's row, those that exist.
inline unsigned two_taps(const uint16_t* line, int column, int tap) {
  const int at = column * kStrideX + tap;
  unsigned both;
  if constexpr (kStrideX % 2 == 0) {
    both = *reinterpret_cast<const unsigned*>(line + at);
  } else {
    both = line[at] | static_cast<unsigned>(line[at + 1]) << 16;
  }
  if constexpr (kWide == kTapsOfLine) return both;
  return tap + 1 < kWide ? both : tap < kWide ? both & 0xffff : 0;
}

inline void multiply_patch(float (&sums)[kBlocksM][kBlocksN][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const unsigned b_at = shared_address(shared_memory);
  const uint16_t* patch = reinterpret_cast<const uint16_t*>(shared_memory + kPatchAt);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    unsigned a[kBlocksM][4], b[kBlocksN / 2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = step * 16 + half * 8 + t * 2;
      const int line = (step * 16 + half * 8) / kTapsOfLine + (t * 2) / kTapsOfLine;
      const int inside = smaller(line, kLines - 1), plane = inside / kHigh;
      const int tapped = inside % kHigh * static_cast<int>(params.dilation[1]);
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
        const int y = (warp * kBlocksM + i) * kStrideY;
        const uint16_t* from = patch + (plane * kPatchHeight + tapped + y) * kPatchWidth;
        const int tap = k % kTapsOfLine;
        a[i][half * 2] = line < kLines ? two_taps(from, g, tap) : 0;
        a[i][half * 2 + 1] = line < kLines ? two_taps(from, g + 8, tap) : 0;
      }
    }
#pragma unroll
    for (int j = 0; j < kBlocksN / 2; ++j) {
      const int row = step * 16 + lane % 16, chunk = j * 2 + lane / 16;
      ldmatrix_transposed(b[j], b_at + row * (kTileColumns * 2) + ((chunk ^ (row & 7)) << 4));
    }
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
        mma_16x8x16<W>(sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2],
                       b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

inline void store_patch(const float (&sums)[kBlocksM][kBlocksN][4], const VectorEpilogue& epilogue,
                        const PatchTile& tile, int64_t first_column) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int quad = 0; quad < kBlocksN / 4; ++quad) {
    const int64_t column = first_column + (quad * 4 + t) * 8;
    const int exist = static_cast<int>(smaller<int64_t>(kColumns - column, 8));
    float bias[8 * VectorEpilogue::kVectors];
    Vectors::added(epilogue, (quad * 4 + t) * 8, column, exist, bias);
#pragma unroll
    for (int row = 0; row < kBlocksM * 2; ++row) {
      const int y = tile.y + warp * kBlocksM + row / 2, x = tile.x + g + row % 2 * 8;
      const bool inside = y < params.out_size[1] && x < params.out_size[2];
      const int count = inside ? exist : 0;
      const int64_t place =
          inside ? (tile.image * params.out_size[1] + y) * params.out_size[2] + x : 0;
      const int64_t r_at =
          params.residual ? offset_at<is_line(params.r_strides)>(place, params.r_strides) + column
                          : 0;
      const uint4 residual = epilogue.residual(r_at, count);
      float even[4], odd[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        even[j] = sums[row / 2][quad * 4 + j][row % 2 * 2];
        odd[j] = sums[row / 2][quad * 4 + j][row % 2 * 2 + 1];
      }
      transpose_quad(even);
      transpose_quad(odd);
      const float v[8] = {even[0], odd[0], even[1], odd[1], even[2], odd[2], even[3], odd[3]};
      epilogue.finish(offset_at<is_line(params.y_strides)>(place, params.y_strides) + column, r_at,
                      count, residual, bias, v);
    }
  }
}

inline void run(void* const* operands) {
  const X* x = static_cast<const X*>(operands[0]);
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kTileColumns;
  VectorEpilogue epilogue(Epilogue(operands, 1, params.out_channels));
  epilogue.wide = epilogue.wide && NPUSIM_WIDE_Y;
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  load_weights(static_cast<const W*>(operands[1]), first_column);
  wait_on_dependencies();
  if constexpr (Vectors::kCount > 0) {
    Vectors::copy(epilogue, first_column, kColumns - first_column);
    cp_async_commit();
  }
  cp_async_wait<0>();
  for (int64_t index = blockIdx.x; index < kTiles; index += gridDim.x) {
    const PatchTile tile(index);
    __syncthreads();  // the last tile's patch has been read
    load_patch(x, tile);
    __syncthreads();
    float sums[kBlocksM][kBlocksN][4] = {};
    multiply_patch(sums);
    store_patch(sums, epilogue, tile, first_column);
  }
}

}  // namespace npusim
