// Quantizes the rows of a weight, once, at load (quantized_layout.h has the layout). Bytes: a warp
// a row. int4: a thread a group.
#include "kernels/cuda/quantization/quantized_layout.h"
#include "kernels/gpu/quantization/fit.h"
#include "kernels/gpu/quantization/float8.h"

namespace npusim {

inline void quantize_row(const W* w, int64_t row, uint8_t* to) {
  const int lane = threadIdx.x % 32;
  float most = 0.0f;
  for (int64_t i = lane; i < params.k; i += 32) most = fmaxf(most, size_of_element(to_float(w[i])));
#pragma unroll
  for (int far = 16; far > 0; far /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, far));
  }
  const float scale = scale_of_bytes(most), inverse = inverse_of(scale);
  for (int64_t i = lane; i < kPaddedK; i += 32) {
    const float x = i < params.k ? to_float(w[i]) : 0.0f;
    const float at = bounded(x * inverse, -kGreatestByte, kGreatestByte);
    to[row * kCodes + i] = static_cast<uint8_t>(kFloatCodes ? static_cast<int>(float8_code(at))
                                                            : static_cast<int>(rintf(at)));
  }
  if (lane == 0) reinterpret_cast<float*>(to + lines(params.rows * kCodes))[row] = scale;
}

inline void quantize_group(const W* w, int64_t row, int64_t group, uint8_t* to) {
  const Group g{w + group * kSize, params.k - group * kSize};
  const Fit fit = params.format == kAsymmetric ? fit_asymmetric(g) : fit_symmetric(g);
  const float inverse = inverse_of(fit.scale);
  uint16_t* words = reinterpret_cast<uint16_t*>(to + row * kCodes + group * kSize / 2);
  for (int run = 0; run < kSize / 32; ++run) {
    for (int j = 0; j < 8; ++j) {
      unsigned word = 0;
      for (int nibble = 0; nibble < 4; ++nibble) {
        const float x = g.at(run * 32 + nibble * 8 + j);
        const float code = rintf(bounded(x * inverse + fit.zero, 0.0f, 15.0f));
        word |= static_cast<unsigned>(code) << (4 * nibble);
      }
      words[run * 8 + j] = static_cast<uint16_t>(word);
    }
  }
  const QuantizedRow at(to, params.rows, row);
  const_cast<float16*>(at.scales)[group] = to_float16(fit.scale);
  if (params.format == kAsymmetric) {
    const_cast<uint8_t*>(at.zeros)[group] = static_cast<uint8_t>(rintf(fit.zero / kZeroStep));
  }
}

inline void run(void* const* operands) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = kBytes ? at / 32 : at / kGroups;
  if (row >= params.rows) return;
  const W* w = static_cast<const W*>(operands[0]) + row * params.ldw;
  uint8_t* to = static_cast<uint8_t*>(operands[1]);
  if constexpr (kBytes) {
    quantize_row(w, row, to);
  } else {
    quantize_group(w, row, at % kGroups, to);
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}
