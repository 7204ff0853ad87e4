// Rotary position embedding of a pair of elements, and where the pairs of up to three tensors
// (queries, keys, values) lie. Operands are the tensors, cos, sin, a position where there is one,
// and the results.
#pragma once
#include "kernels/device/entry.h"

namespace npusim {

using T = Storage<params.dtype>;
using C = Storage<params.cs_dtype>;
NPUSIM_CONSTANT constexpr int kParts = params.parts;
NPUSIM_CONSTANT constexpr int kFirstOutput = kParts + 2 + (params.has_position ? 1 : 0);

constexpr int64_t pairs_of_head(int part) {
  return (params.head_dim[part] + 1) / 2;
}
constexpr int64_t pairs_of_token() {
  int64_t pairs = 0;
  for (int i = 0; i < kParts; ++i) pairs += params.heads[i] * pairs_of_head(i);
  return pairs;
}

// Whether all rows at `position` lie inside their caches; the first thread of a block reports the
// first that does not.
inline bool fits(int64_t position, unsigned thread_of_block, NPUSIM_GLOBAL void* failure) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int64_t last = params.limit[i] - params.length;
    if (params.at_position[i] && (position < 0 || position > last)) {
      if (thread_of_block == 0) {
        report(static_cast<NPUSIM_GLOBAL Failure*>(failure), kOutOfRange, position, last);
      }
      return false;
    }
  }
  return true;
}

// Turns a pair of a token's, or copies two neighbours beyond those that are turned; both are read
// before either is written.
template <int kPart>
void rotate(Arguments operands, int64_t batch, int64_t t, int64_t pair, int64_t position) {
  constexpr int64_t kPairs = pairs_of_head(kPart), kDim = params.head_dim[kPart];
  constexpr int64_t kRotated = params.rotate[kPart] ? params.rotary_dim : 0, kHalf = kRotated / 2;
  const int64_t head = pair / kPairs, j = pair % kPairs;
  const int64_t row = t + (params.at_position[kPart] ? position : 0);
  NPUSIM_GLOBAL const T* x =
      static_cast<NPUSIM_GLOBAL const T*>(operands[kPart]) + batch * params.x_strides[3 * kPart] +
      head * params.x_strides[3 * kPart + 1] + t * params.x_strides[3 * kPart + 2];
  NPUSIM_GLOBAL T* y = static_cast<NPUSIM_GLOBAL T*>(operands[kFirstOutput + kPart]) +
                       batch * params.y_strides[3 * kPart] +
                       head * params.y_strides[3 * kPart + 1] +
                       row * params.y_strides[3 * kPart + 2];
  if (j >= kHalf) {
    const int64_t at = 2 * j;
    const bool both = at + 1 < kDim;
    const T first = x[at], second = both ? x[at + 1] : T{};
    y[at] = first;
    if (both) y[at + 1] = second;
    return;
  }
  const int64_t at = params.interleaved ? 2 * j : j,
                other = params.interleaved ? at + 1 : j + kHalf;
  NPUSIM_GLOBAL const C* cos = static_cast<NPUSIM_GLOBAL const C*>(operands[kParts]) +
                               batch * params.cs_strides[0] + t * params.cs_strides[1];
  NPUSIM_GLOBAL const C* sin = static_cast<NPUSIM_GLOBAL const C*>(operands[kParts + 1]) +
                               batch * params.cs_strides[2] + t * params.cs_strides[3];
  const float a = decode<float>(x[at]), b = decode<float>(x[other]);
  const float rotated_a = a * decode<float>(cos[at]) - b * decode<float>(sin[at]);
  const float rotated_b = b * decode<float>(cos[other]) + a * decode<float>(sin[other]);
  y[at] = encode<T>(rotated_a);
  y[other] = encode<T>(rotated_b);
}

}  // namespace npusim
