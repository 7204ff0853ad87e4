// Quantizes the rows of a weight, once, at load (quantized_layout.h has the layout). Bytes: 32
// threads a row. int4: a thread a group.
#include "kernels/gpu/quantization/fit.h"
#include "kernels/gpu/quantization/float8.h"
#include "kernels/metal/quantization/quantized_layout.h"

namespace npusim {

inline float nearest(float x, float lo, float hi) {
  return rounded(bounded(x, lo, hi));
}

inline void quantize_group(Group g, int64_t group, device uint8_t* codes, device uint8_t* scales,
                           device uint8_t* zeros) {
  Fit fit = fit_symmetric(g);
  if (params.format == kAsymmetric) fit = fit_asymmetric(g);
  const float inverse = inverse_of(fit.scale);
  device uint16_t* words = reinterpret_cast<device uint16_t*>(codes) + group * (kSize / 4);
  for (int word = 0; word < kSize / 4; ++word) {
    uint bits = 0;
    for (int nibble = 0; nibble < 4; ++nibble) {
      const float x = g.at(word / 8 * 32 + nibble * 8 + word % 8);
      const float code = nearest(x * inverse + fit.zero, 0.0f, 15.0f);
      bits |= static_cast<uint>(code) << (4 * nibble);
    }
    words[word] = static_cast<uint16_t>(bits);
  }
  reinterpret_cast<device half*>(scales)[group] = static_cast<half>(fit.scale);
  if (params.format == kAsymmetric) {
    zeros[group] = static_cast<uint8_t>(metal::precise::rint(fit.zero * 16.0f));
  }
}

// `most` has a number a thread.
inline void quantize_row(device const W* w, bool exists, int t, device uint8_t* codes,
                         device uint8_t* scales, threadgroup float* most) {
  float own = 0.0f;
  for (int64_t i = t % 32; exists && i < params.k; i += 32) {
    own = metal::precise::fmax(own, size_of_element(static_cast<float>(w[i])));
  }
  most[t] = own;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (int i = 0; i < 32; ++i) own = metal::precise::fmax(own, most[t / 32 * 32 + i]);
  if (!exists) return;
  const float scale = scale_of_bytes(own), inverse = inverse_of(scale);
  for (int64_t i = t % 32; i < kPaddedK; i += 32) {
    const float x = i < params.k ? static_cast<float>(w[i]) : 0.0f;
    const float at = bounded(x * inverse, -kGreatestByte, kGreatestByte);
    const int code = params.format == kFloat8 ? static_cast<int>(float8_code(at))
                                              : static_cast<int>(rounded(at));
    codes[i] = static_cast<uint8_t>(code);
  }
  if (t % 32 == 0) *reinterpret_cast<device float*>(scales) = scale;
}

}  // namespace npusim

kernel void npusim_kernel(device const npusim::W* w [[buffer(0)]],
                          device uint8_t* quantized [[buffer(1)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint thread_of_group [[thread_position_in_threadgroup]]) {
  using namespace npusim;
  threadgroup float most[NPUSIM_BLOCK];
  const int t = static_cast<int>(thread_of_group);
  const int64_t at = static_cast<int64_t>(group) * NPUSIM_BLOCK + t;
  const int64_t row = kBytes ? at / 32 : at / kGroupsOfRow;
  const int64_t bytes = kBytes ? 4 : 2 * kGroupsOfRow;  // of a row's scales
  device uint8_t* scales = quantized + lines(params.rows * kRowBytes);
  device uint8_t* zeros = scales + lines(params.rows * bytes) + row * kGroupsOfRow;
  device uint8_t* codes = quantized + row * kRowBytes;
  scales += row * bytes;
  device const W* from = w + row * params.ldw;
  if (kBytes) {
    quantize_row(from, row < params.rows, t, codes, scales, most);
  } else if (row < params.rows) {
    const int64_t of = at % kGroupsOfRow;
    const Group g = {from + of * kSize, params.k - of * kSize};
    quantize_group(g, of, codes, scales, zeros);
  }
}
