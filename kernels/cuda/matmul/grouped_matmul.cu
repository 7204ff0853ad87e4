// Products of consecutive groups of a's rows, each with a b of its own; where a group ends is data.
// Blocks are counted off over the tiles of each group's rows, and of the rows after all groups,
// which are 0; there are as many as any offsets can need, and those that are left over end.
#include "kernels/cuda/matmul/matmul_tile.h"

namespace npusim {

constexpr int64_t kGroups = params.batch[5];

// Returns whether there is a tile for this block.
inline bool find_place(void* const* operands, Place& place) {
  const auto* offsets = static_cast<const int32_t*>(operands[2]);
  int64_t tile = blockIdx.x, begin = 0;
  for (int64_t group = 0; group <= kGroups; ++group) {
    int64_t end = params.m;
    if (group < kGroups) end = offsets[group] < end ? offsets[group] : end;
    if (end <= begin) continue;
    const int64_t tiles = ceil_div(end - begin, kTileRows);
    if (tile < tiles) {
      const bool exists = group < kGroups;
      place.b += exists ? group * params.b_batch[5] : 0;
      place.row = begin + tile * kTileRows;
      place.rows = end;
      place.depth = exists ? params.k : 0;
      return true;
    }
    tile -= tiles;
    begin = end;
  }
  return false;
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  using namespace npusim;
  void* const operands[] = {NPUSIM_POINTERS};
  Place place{static_cast<const T*>(operands[0]), static_cast<const T*>(operands[1]),
              static_cast<T*>(operands[3]), 0, static_cast<int64_t>(blockIdx.y) * kTileColumns};
  if (find_place(operands, place)) multiply(place, operands);
}
