// y = alpha * a·b over batches, for operands that exist only at run time. Blocks of one batch item
// follow those of another in x.
#include "kernels/cuda/matmul/matmul_tile.h"

namespace npusim {

constexpr int64_t kRowTiles = ceil_div(params.m, kTileRows);

inline Place place_of(void* const* operands) {
  Place place{static_cast<const T*>(operands[0]), static_cast<const T*>(operands[1]),
              static_cast<T*>(operands[2]), blockIdx.x % kRowTiles * kTileRows,
              static_cast<int64_t>(blockIdx.y) * kTileColumns};
  int64_t item = blockIdx.x / kRowTiles;
#pragma unroll
  for (int d = 5; d >= 0; --d) {
    const int64_t i = item % params.batch[d];
    item /= params.batch[d];
    place.a += i * params.a_batch[d];
    place.b += i * params.b_batch[d];
    place.y += i * params.y_batch[d];
  }
  return place;
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::multiply(npusim::place_of(operands), operands);
}
