// The operands of conv, and the sizes of the matrix product that it is.
#pragma once
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/conv/conv_window.h"
#include "kernels/cuda/conv/packed_weights.h"

namespace npusim {

constexpr bool kTransposed = params.transposed != 0;
constexpr int64_t kChannels = params.in_channels / params.groups;
constexpr int64_t kColumns = params.out_channels / params.groups;
constexpr int64_t kK = kTaps * kChannels;
using Weights = PackedWeights<W, kColumns, kK, is_packed_by_rows(kChannels)>;

// Whether nothing writes weights and bias before in the method, so that they may be read before the
// wait.
constexpr bool kWeightsUnwritten = (unwritten_operands >> 1 & 1) != 0;
constexpr bool kBiasUnwritten = (unwritten_operands >> 2 & 1) != 0;

}  // namespace npusim
