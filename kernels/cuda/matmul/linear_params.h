// What linear and quantized_linear have in common.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

using X = Storage<params.x_dtype>;
constexpr int kParts = params.gated ? 2 : 1;  // rows of W for a column of y

}  // namespace npusim
