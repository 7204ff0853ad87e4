// How pack_b leaves a convolution's weights, in its buffer of [groups][ceil(n/16)][K][16] elements,
// with zeros for columns beyond n; K runs over taps, then channels.
//   by rows    where channels come in eights: [groups][16 ceil(n/16)][K], as the tensor cores take
//              B from shared memory
//   in panels  otherwise: [groups][ceil(n/16)][K][16], so that chunks of 16 bytes are whole
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

constexpr int64_t kPanel = 16;

constexpr bool is_packed_by_rows(int64_t channels) {
  return channels % 8 == 0;
}

template <typename W, int64_t kColumns, int64_t kK, bool kByRows>
struct PackedWeights {
  static constexpr int64_t kAll = ceil_div(kColumns, kPanel) * kPanel;  // columns, with the zeros
  static constexpr int64_t kStep = kByRows ? 1 : kPanel;                // between neighbours in K

  // Where a column begins; the last one, for those that do not exist.
  static const W* column(const W* group, int64_t at) {
    at = smaller(at, kAll - 1);
    return group + (kByRows ? at * kK : at / kPanel * kK * kPanel + at % kPanel);
  }
};

}  // namespace npusim
