// Factors of the sums of a product's columns, where W is of codes that were expanded without their
// scales (quantization/expanded_codes.h): one a row of W, behind W in memory.
#pragma once
#include "kernels/cuda/matmul/linear_params.h"

namespace npusim {

#ifdef NPUSIM_SCALES_AT  // bytes
constexpr int64_t kScalesAt = NPUSIM_SCALES_AT;
#else
constexpr int64_t kScalesAt = 0;  // there are none
#endif
constexpr bool kScalesSums = kScalesAt > 0;

inline const float* sum_scales(void* const* operands) {
  return reinterpret_cast<const float*>(static_cast<const uint8_t*>(operands[1]) + kScalesAt);
}

}  // namespace npusim
