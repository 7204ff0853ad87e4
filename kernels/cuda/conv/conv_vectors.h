// The vectors that a convolution's bias consists of where there is more than one: the bias, factors
// of the sums and offsets of y, of a tile's columns.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/conv/conv_operands.h"
#include "kernels/cuda/matmul/epilogue.h"

namespace npusim {

// They wait in shared memory at `kAt`, [vector][column], zeros after the last column, to be there
// when K has run. A bias alone does not: it is loaded where it is added.
template <int kAt, int kColumns>
struct TileVectors {
  static constexpr int kCount = Epilogue::kHasFactors ? params.has_bias : 0;
  static constexpr int kBytes = kCount * kColumns * 4;

  static const float* at(int vector, int column) {
    return reinterpret_cast<const float*>(shared_memory + kAt) + vector * kColumns + column;
  }
  // Begins to copy those from channel `first` on, of which `count` exist. Other threads may read
  // them once these have waited for their copies and met.
  static void copy(const VectorEpilogue& epilogue, int64_t first, int64_t count) {
    if constexpr (kCount == 0) return;
    for (int i = threadIdx.x; i < kBytes / 16; i += blockDim.x) {
      const int vector = i / (kColumns / 4), column = i % (kColumns / 4) * 4;
      const float* from =
          epilogue.epilogue.bias + vector * epilogue.epilogue.vector + first + column;
      if (epilogue.wide) {
        const bool exist = column < count;
        cp_async(shared_address(shared_memory + kAt + i * 16),
                 exist ? from : epilogue.epilogue.bias, exist);
        continue;
      }
      float* to = reinterpret_cast<float*>(shared_memory + kAt + i * 16);
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = column + e < count ? from[e] : 0;
    }
  }
  // The bias of eight columns of the tile, of which `count` exist, then their factors and offsets.
  // The first is channel `channel` of all.
  template <int kEach>
  static void added(const VectorEpilogue& epilogue, int column, int64_t channel, int count,
                    float (&b)[kEach]) {
    if constexpr (kCount == 0) {
      epilogue.bias(channel, count, b);
    } else {
#pragma unroll
      for (int i = 0; i < kEach / 8; ++i) {
        load_floats<8>(at(i, column), b + i * 8);
      }
    }
  }
};

}  // namespace npusim
