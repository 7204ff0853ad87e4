// Lays a weight out as panels: [groups][ceil(n/16)][taps * channels][16], zero-padded, once, at
// load.
#include "kernels/cuda/mma_types.h"

namespace npusim {

inline void run(void* const* operands) {
  using W = Storage<params.x_dtype>;
  using B = Storage<params.y_dtype>;
  constexpr int64_t kPanel = 16, kPanels = ceil_div(params.n, kPanel);
  constexpr int64_t kK = params.taps * params.channels;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= params.groups * kPanels * kK * kPanel) return;
  const int64_t k = at / kPanel % kK, panel = at / kPanel / kK;
  const int64_t n = panel % kPanels * kPanel + at % kPanel, group = panel / kPanels;
  float value = 0.0f;
  if (n < params.n) {
    value =
        to_float(static_cast<const W*>(operands[0])[group * params.g_stride + n * params.n_stride +
                                                    k / params.channels * params.t_stride +
                                                    k % params.channels * params.c_stride]);
  }
  static_cast<B*>(operands[1])[at] = encode<B>(value);
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}
