// Depthwise convolution: a thread has one channel of one output position, neighbours have
// neighbouring channels. w is [taps][channels].
#include "kernels/cuda/conv/conv_window.h"
#include "kernels/cuda/matmul/epilogue.h"

namespace npusim {

inline void run(void* const* operands) {
  using X = Storage<params.x_dtype>;
  using W = Storage<params.w_dtype>;
  constexpr int kTaps = static_cast<int>(params.kernel[0] * params.kernel[1] * params.kernel[2]);
  constexpr int kUnroll = kTaps <= 32 ? kTaps : 1;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= kPositions * params.out_channels) return;
  const int64_t channel = at % params.out_channels;
  const Position position(at / params.out_channels);
  const X* x = static_cast<const X*>(operands[0]) + channel * params.x_strides[1];
  const W* w = static_cast<const W*>(operands[1]) + channel;
  float sum = 0.0f;
#pragma unroll kUnroll
  for (int tap = 0; tap < kTaps; ++tap) {
    const int64_t offset = input_offset<false>(position, tap);
    if (offset != kPadding) sum += to_float(x[offset]) * to_float(w[tap * params.out_channels]);
  }
  const Epilogue epilogue(operands, 1, params.out_channels);
  const int64_t r = params.residual ? position.offset(params.r_strides) : 0;
  epilogue.store(position.offset(params.y_strides) + channel, epilogue.finish(sum, r, channel));
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}
