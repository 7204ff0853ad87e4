// Depthwise convolution, w is [taps][channels]: a thread has a strip of y. Where operands do not
// lie on whole packs of channels, it computes its elements one by one.
#include "kernels/cuda/conv/depthwise_strip.h"

namespace npusim {

inline float element(const X* x, const W* w, const Position& at) {
  float sum = 0.0f;
  for (int tap = 0; tap < kTaps; ++tap) {
    const int64_t offset = input_offset<false>(at, tap);
    if (offset != kPadding) sum += to_float(x[offset]) * to_float(w[tap * params.out_channels]);
  }
  return sum;
}

inline void run(void* const* operands) {
  const Strip strip;
  if (!strip.exists()) return;
  const X* x = static_cast<const X*>(operands[0]) + strip.channel;
  const W* w = static_cast<const W*>(operands[1]) + strip.channel;
  const Epilogue epilogue(operands, 1, params.out_channels);
  const bool packed = is_packed<kChannels>(x) && is_packed<kChannels>(w);
  const bool fits = packed && StripEpilogue::fits(epilogue);
  Sums sums = {};
  if (fits && strip.lies_inside()) {
    add_window<true>(x, strip.first, w, sums);
  } else if (fits) {
    add_window<false>(x, strip.first, w, sums);
  }
  Position at = strip.first;
#pragma unroll
  for (int i = 0; i < kStrip; ++i, ++at.at[2]) {
    if (at.at[2] >= static_cast<int>(params.out_size[2])) break;
    const int64_t y = at.offset(params.y_strides) + strip.channel;
    const int64_t r = params.residual ? at.offset(params.r_strides) + strip.channel : 0;
    if (fits) {
      StripEpilogue(epilogue, strip.channel).store(y, r, sums[i]);
      continue;
    }
    for (int e = 0; e < kChannels; ++e) {
      const float sum = element(x + e, w + e, at);
      epilogue.store(y + e, epilogue.finish(sum, r - strip.channel, strip.channel + e));
    }
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}
