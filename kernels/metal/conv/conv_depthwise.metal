// Depthwise convolution: a thread has one channel of one output position, neighbours have
// neighbouring channels. w is [taps][channels].
#include "kernels/metal/conv/window.h"
#include "kernels/metal/matmul/epilogue.h"

namespace npusim {
typedef Storage<params.x_dtype> X;
typedef Storage<params.w_dtype> Weight;
}  // namespace npusim

kernel void npusim_kernel(device const npusim::X* x [[buffer(0)]],
                          device const npusim::Weight* w [[buffer(1)]],
                          NPUSIM_EPILOGUE_OPERANDS uint group [[threadgroup_position_in_grid]],
                          uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  const int64_t at = static_cast<int64_t>(group) * NPUSIM_BLOCK + t;
  if (at >= kPositions * params.out_channels) return;
  const int64_t channel = at % params.out_channels;
  const Position position = position_of(at / params.out_channels);
  float sum = 0.0f;
  for (int tap = 0; tap < kTaps; ++tap) {
    const int64_t offset = input_offset<false>(position, tap);
    if (offset == kPadding) continue;
    sum += static_cast<float>(x[offset + channel * params.x_strides[1]]) *
           static_cast<float>(w[tap * params.out_channels + channel]);
  }
  const Epilogue epilogue = NPUSIM_EPILOGUE;
  const int64_t r = params.residual != 0 ? r_offset(position) + channel : 0;
  epilogue.put(y_offset(position) + channel,
               epilogue.finished(sum, r, channel, params.out_channels));
}
