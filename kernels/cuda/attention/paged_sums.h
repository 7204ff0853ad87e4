// Weighted sums of values over parts of the keys, folded in the order of the keys. A part that has
// no keys changes nothing, to the bit.
#pragma once
#include "kernels/cuda/attention/scores.h"

namespace npusim {

constexpr int kUnit = 64;    // keys that are weighted relative to one maximum
constexpr int kChunk = 256;  // keys that are folded by themselves

// What sums so far and those of a part are multiplied by, relative to the maximum of both.
struct PartFactors {
  float old, part;
};

// Adds a part's maximum and sum of weights to those of a row.
inline PartFactors fold_weights(float& row_max, float& row_sum, float part_max, float part_sum) {
  const float most = fmaxf(row_max, part_max);
  const PartFactors by{rescale(row_max, most), rescale(part_max, most)};
  row_max = most;
  row_sum = fmaf(row_sum, by.old, part_sum * by.part);
  return by;
}
inline void fold_sum(float& sum, float part, const PartFactors& by) {
  sum = fmaf(sum, by.old, part * by.part);
}

}  // namespace npusim
