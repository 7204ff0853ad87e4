// Four neighbours of a row: what threads of matrix kernels read at once.
#pragma once
#include "kernels/metal/common/scalar.h"

namespace npusim {

// The first four elements as numbers of another type, zeros where `count` are fewer. Whole fours,
// which nearly all are, take one test.
template <typename T, typename S>
inline void load_four(device const T* from, int64_t count, thread S* to) {
  if (count >= 4) {
#pragma unroll
    for (int e = 0; e < 4; ++e) to[e] = static_cast<S>(from[e]);
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) to[e] = e < count ? static_cast<S>(from[e]) : static_cast<S>(0.0f);
}

}  // namespace npusim
