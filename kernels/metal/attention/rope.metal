// Rotary position embedding of up to three tensors (queries, keys, values) at once, and the append
// of the results to a cache at a position read when the command runs. A thread has a pair of
// elements, so that y may be x's memory for a part that keeps its positions.
#include "kernels/gpu/attention/rope.h"

namespace npusim {

inline void run(uint item, uint thread_of_block, Arguments operands) {
  int64_t position = 0;
  if (params.has_position) {
    position = *static_cast<device const int64_t*>(operands[kParts + 2]);
    if (!fits(position, thread_of_block, operands[NPUSIM_ARGUMENTS - 1])) return;
  }
  // 32 bits, which divide faster, are enough for the threads of a grid.
  constexpr uint kPairs = pairs_of_token(), kLength = params.length;
  if (item >= params.batch * params.length * kPairs) return;
  const uint token = item / kPairs, batch = token / kLength, t = token % kLength;
  constexpr int kSecondPart = kParts > 1 ? 1 : 0, kThirdPart = kParts > 2 ? 2 : 0;
  constexpr int64_t kSecond = params.heads[0] * pairs_of_head(0);
  constexpr int64_t kThird = kSecond + params.heads[kSecondPart] * pairs_of_head(kSecondPart);
  const int64_t pair = item % kPairs;
  if (pair < kSecond) {
    rotate<0>(operands, batch, t, pair, position);
  } else if (pair < kThird) {
    rotate<kSecondPart>(operands, batch, t, pair - kSecond, position);
  } else {
    rotate<kThirdPart>(operands, batch, t, pair - kThird, position);
  }
}

}  // namespace npusim

NPUSIM_ENTRY {
  device void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(NPUSIM_ITEM, thread_of_group, operands);
}
