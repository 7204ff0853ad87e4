// What products in tiles and products of few rows add up: operands as elements of dtype
// NPUSIM_STAGED, and NPUSIM_PARTS sums for each column of y.
#pragma once
#include "kernels/metal/common/scalar_ops.h"

namespace npusim {

typedef Storage<NPUSIM_STAGED> Staged;
template <bool kReal>
struct SumOf {
  typedef float type;
};
template <>
struct SumOf<false> {
  typedef uint64_t type;  // wraps
};
typedef SumOf<(NPUSIM_STAGED < 3)>::type Sum;
enum : int { kParts = NPUSIM_PARTS };

}  // namespace npusim
