// The walk of scatter: bit NPUSIM_APART says of each dimension whether positions along it alone
// keep items apart, whatever the indices are; threads share these dimensions, and each walks the
// others in order.
#pragma once
#include "kernels/gpu/indexing/scatter.h"

namespace npusim {

inline void scatter_walk(int64_t item, Arguments operands) {
  if (item >= NPUSIM_ITEMS) return;
  NPUSIM_GLOBAL const T* src = static_cast<NPUSIM_GLOBAL const T*>(operands[0]);
  NPUSIM_GLOBAL T* y = static_cast<NPUSIM_GLOBAL T*>(operands[1 + kIndices]);
  Cursor start;
  seek<NPUSIM_APART>(start, item);
  for (int64_t i = 0; i < NPUSIM_STEPS; ++i) {
    Cursor at = start;
    seek<~NPUSIM_APART>(at, i);
    if (!resolve(at, operands)) continue;
    y[at.indexed] = combine(y[at.indexed], src[at.dense]);
  }
}

}  // namespace npusim
