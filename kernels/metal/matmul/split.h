// K in NPUSIM_SPLIT parts of NPUSIM_DEPTH_EACH, for products with too few sums to fill a GPU: a
// threadgroup each, which leaves its sums in scratch memory. A second launch adds them up in the
// order of the parts.
#pragma once
#include "kernels/metal/matmul/sums.h"

#if NPUSIM_SPLIT > 1
#define NPUSIM_PARTIAL_OPERAND device npusim::Sum *partial [[buffer(NPUSIM_PARTIAL)]],
#else
#define NPUSIM_PARTIAL_OPERAND
#endif

namespace npusim {

enum : int { kSplit = NPUSIM_SPLIT };
constant constexpr int64_t kSumsOfProduct = params.m * params.n * kParts;

inline int64_t part_begin(int64_t part) {
  return part * NPUSIM_DEPTH_EACH;
}
inline int64_t part_end(int64_t part) {
  const int64_t end = (part + 1) * NPUSIM_DEPTH_EACH;
  return part == kSplit - 1 || end > params.k ? params.k : end;
}

// Where a part's sums of y go.
struct PartialOutput {
  device Sum* to;
  int64_t first_row, first_column;

  void put_at(int64_t row, int64_t column, Sum first, Sum second) const {
    if (row >= params.m || column >= params.n) return;
    device Sum* at = to + (row * params.n + column) * kParts;
    at[0] = first;
    if (kParts == 2) at[kParts - 1] = second;
  }
  void put(int row, int column, Sum first, Sum second) const {
    put_at(first_row + row, first_column + column, first, second);
  }
};

// Of `items` products, the sums of a part of one.
inline device Sum* partial_of(device Sum* partial, int64_t part, int64_t item, int64_t items) {
  return partial + (part * items + item) * kSumsOfProduct;
}

// Gives the whole sums of element `at` of a product's y to its output.
template <typename Output>
inline void combine_parts(thread const Output& output, device Sum* partial, int64_t item,
                          int64_t items, int64_t at) {
  Sum first = 0, second = 0;
  for (int part = 0; part < kSplit; ++part) {
    device const Sum* from = partial_of(partial, part, item, items) + at * kParts;
    first += from[0];
    second += from[kParts - 1];
  }
  output.put_at(at / params.n, at % params.n, first, second);
}

}  // namespace npusim
