// Lays a convolution's weights out as conv.metal reads them, once, at load: [groups][16
// ceil(n/16)][K], K over taps, then channels, with zeros for columns beyond n.
#include "kernels/metal/common/scalar.h"

kernel void npusim_kernel(device const npusim::Storage<npusim::params.x_dtype>* w [[buffer(0)]],
                          device npusim::Storage<npusim::params.y_dtype>* packed [[buffer(1)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint t [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  const int64_t depth = params.taps * params.channels, all = (params.n + 15) / 16 * 16;
  const int64_t at = static_cast<int64_t>(group) * NPUSIM_BLOCK + t;
  if (at >= params.groups * all * depth) return;
  const int64_t of = at / (all * depth), n = at / depth % all, k = at % depth;
  float value = 0.0f;
  if (n < params.n) {
    value = static_cast<float>(
        w[of * params.g_stride + n * params.n_stride + k / params.channels * params.t_stride +
          k % params.channels * params.c_stride]);
  }
  packed[at] = encode<Storage<params.y_dtype>>(value);
}
