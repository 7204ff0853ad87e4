// Convolution in groups of few channels: a thread has a strip of a group's columns, kOut of them.
#pragma once
#include "kernels/cuda/conv/conv_operands.h"
#include "kernels/cuda/conv/strip.h"

namespace npusim {

inline void run(void* const* operands) {
  const Strip strip;
  wait_on_dependencies();
  if (!strip.exists()) return;
  const int64_t group = strip.channel() / kColumns, column = strip.channel() % kColumns;
  const X* x = static_cast<const X*>(operands[0]) + group * kChannels;
  const W* all = static_cast<const W*>(operands[1]) + group * Weights::kAll * kK;
  const W* w = Weights::column(all, column);
  run_strip(strip, x, w, operands, [&](const Position& at, int out) {
    float sum = 0.0f;
    for (int tap = 0; tap < kTaps; ++tap) {
      const int64_t offset = input_offset<false>(at, tap);
      if (offset == kPadding) continue;
      for (int in = 0; in < kIn; ++in) {
        sum += to_float(x[offset + in]) * to_float(w[(tap * kIn + in) * kPanel + out]);
      }
    }
    return sum;
  });
}

}  // namespace npusim
