// Lays a convolution's weights out for the kernels that read them (packed_weights.h), once, at
// load.
#include "kernels/cuda/conv/packed_weights.h"

namespace npusim {

inline void run(void* const* operands) {
  using W = Storage<params.x_dtype>;
  using B = Storage<params.y_dtype>;
  constexpr int64_t kK = params.taps * params.channels;
  constexpr int64_t kAll = ceil_div(params.n, kPanel) * kPanel;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= params.groups * kAll * kK) return;
  const int64_t group = at / (kAll * kK), inside = at % (kAll * kK);
  int64_t n, k;
  if constexpr (is_packed_by_rows(params.channels)) {
    n = inside / kK;
    k = inside % kK;
  } else {
    n = inside / (kK * kPanel) * kPanel + inside % kPanel;
    k = inside / kPanel % kK;
  }
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
