// The operands of conv, and the sizes of the matrix product that it is.
#pragma once
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/conv/conv_window.h"
#include "kernels/cuda/conv/packed_weights.h"

namespace npusim {

constexpr bool kTransposed = params.transposed == 1;
constexpr int64_t kChannels = params.in_channels / params.groups;
constexpr int64_t kColumns = params.out_channels / params.groups;
constexpr int64_t kK = kTaps * kChannels;
using Weights = PackedWeights<W, kColumns, kK, is_packed_by_rows(kChannels)>;

// Phases of a transposed convolution, which are computed at once as groups are: each is a plain one
// of stride 1 (ops/conv_phases.py). Params are those of a phase, but for stride and pad; weights
// lie by phases, in the order of their first taps, the last tap first.
constexpr bool kPhased = params.transposed == 2;
constexpr int64_t kPhases = kPhased ? params.stride[0] * params.stride[1] * params.stride[2] : 1;
static_assert(!kPhased || (params.groups == 1 && kHasWindows));

// A group of channels, or a phase.
struct Part {
  int64_t number;  // of its weights
  int64_t group;
  WindowSteps steps;
  int start[3] = {};  // where the positions of y begin

  explicit Part(int64_t number) : number(number), group(kPhased ? 0 : number) {
    if constexpr (kPhased) {
      int rest = static_cast<int>(number);
#pragma unroll
      for (int d = 2; d >= 0; --d) {
        const int stride = static_cast<int>(params.stride[d]),
                  pad = static_cast<int>(params.pad[d]);
        const int first_tap = rest % stride;
        rest /= stride;
        start[d] = (first_tap + (stride - pad % stride)) % stride;
        steps.stride[d] = 1;
        steps.pad[d] = static_cast<int>(params.kernel[d]) - 1 - (start[d] + pad) / stride;
      }
    }
  }
  // How far before all of it a phase's part of y or of the residual begins.
  int64_t offset(const int64_t (&strides)[5]) const {
    int64_t offset = 0;
#pragma unroll
    for (int d = 0; d < 3; ++d) offset += start[d] * (strides[2 + d] / params.stride[d]);
    return offset;
  }
  template <typename Epilogue>
  Epilogue moved(Epilogue epilogue) const {
    if constexpr (kPhased) {
      epilogue.y += offset(params.y_strides);
      if constexpr (params.residual != 0) epilogue.residual += offset(params.r_strides);
    }
    return epilogue;
  }
};

// Whether nothing writes weights and bias before in the method, so that they may be read before the
// wait.
constexpr bool kWeightsUnwritten = (unwritten_operands >> 1 & 1) != 0;
constexpr bool kBiasUnwritten = (unwritten_operands >> 2 & 1) != 0;

}  // namespace npusim
