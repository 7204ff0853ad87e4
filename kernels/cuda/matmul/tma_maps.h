// The tensor maps of a product's operands, and where rows of W lie in them.
#pragma once
#include "kernels/cuda/common/tma.h"
#include "kernels/cuda/matmul/linear_params.h"

namespace npusim {

// Of x, and of the segments of W.
struct Maps {
  const TensorMap* all[1 + params.segments];
};

// A row of W: a segment's map, and the row there.
struct MappedRow {
  const TensorMap* map;
  int row;
};

inline MappedRow mapped_row(const Maps& maps, int64_t row) {
  constexpr auto p = params;
  const TensorMap* map = maps.all[1];
  int64_t first = 0, before = 0;
#pragma unroll
  for (int s = 1; s < params.segments; ++s) {
    first += p.rows[s - 1];
    if (row < first) continue;
    map = maps.all[1 + s];
    before = first;
  }
  return {map, static_cast<int>(row - before)};
}

}  // namespace npusim
