// Depthwise convolution, w is [taps][channels]: a thread has a strip of y.
#include "kernels/cuda/conv/conv_window.h"
#include "kernels/cuda/conv/strip.h"

namespace npusim {

inline void run(void* const* operands) {
  const Strip strip;
  if (!strip.exists()) return;
  const X* x = static_cast<const X*>(operands[0]) + strip.channel();
  const W* w = static_cast<const W*>(operands[1]) + strip.channel();
  run_strip(strip, x, w, operands, [&](const Position& at, int out) {
    float sum = 0.0f;
    for (int tap = 0; tap < kTaps; ++tap) {
      const int64_t offset = input_offset<false>(at, tap);
      if (offset == kPadding) continue;
      sum += to_float(x[offset + out]) * to_float(w[tap * params.out_channels + out]);
    }
    return sum;
  });
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}
