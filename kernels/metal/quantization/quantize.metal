// Quantizes the rows of a weight, once, at load (quantized_layout.h has the layout). int8: 32
// threads a row. int4: a thread a group; for a few candidate ranges the codes are found, then the
// scale (and zero point) that minimises the squared error for these codes, and the best candidate
// is kept.
#include "kernels/metal/quantization/quantized_layout.h"

namespace npusim {

typedef Storage<params.x_dtype> W;
enum : int { kSize = kBytes ? 128 : static_cast<int>(params.group) };  // of a group

inline float inverse_of(float x) {
  return x != 0.0f ? 1.0f / x : 0.0f;
}
inline float bounded(float x, float lo, float hi) {
  return metal::precise::fmin(metal::precise::fmax(x, lo), hi);
}
inline float nearest(float x, float lo, float hi) {
  return metal::precise::rint(bounded(x, lo, hi));
}
// The scale as it will be stored.
inline float stored(float scale) {
  if (metal::precise::fabs(scale) < 5.96046448e-08f) return 0.0f;
  return static_cast<float>(static_cast<half>(bounded(scale, -65504.0f, 65504.0f)));
}

struct Fit {
  float scale, zero;
};

// Element i of a group; 0 beyond the row.
struct Group {
  device const W* w;
  int64_t valid;
  float at(int i) const { return i < valid ? static_cast<float>(w[i]) : 0.0f; }
};

inline Fit fit_symmetric(Group g) {
  float low = 0.0f, high = 0.0f;
  for (int i = 0; i < kSize; ++i) {
    low = metal::precise::fmin(low, g.at(i));
    high = metal::precise::fmax(high, g.at(i));
  }
  const float reaches[] = {1.09f, 1.0f, 0.93f, 0.86f, 0.8f};
  const float extreme = -low > high ? low : high;  // the code that reaches further is -8
  float best = 0.0f, scale = extreme / -8.0f;
  for (int r = 0; r < 5; ++r) {
    const float inverse = inverse_of(extreme * (reaches[r] / -8.0f));
    float cx = 0.0f, cc = 0.0f;
    for (int i = 0; i < kSize; ++i) {
      const float x = g.at(i), code = nearest(x * inverse, -8.0f, 7.0f);
      cx += code * x;
      cc += code * code;
    }
    const float candidate = cx * inverse_of(cc), explained = candidate * cx;
    if (explained > best) {
      scale = candidate;
      best = explained;
    }
  }
  Fit fit = {stored(scale), 8.0f};
  return fit;
}

inline Fit fit_asymmetric(Group g) {
  const float n = kSize;
  float low = 0.0f, high = 0.0f, sum_x = 0.0f;
  for (int i = 0; i < kSize; ++i) {
    low = metal::precise::fmin(low, g.at(i));
    high = metal::precise::fmax(high, g.at(i));
    sum_x += g.at(i);
  }
  const float reaches[] = {1.0f, 0.93f, 0.86f, 0.8f};
  float best = 0.0f, best_scale = (high - low) / 15.0f, best_zero = 0.0f;
  for (int r = 0; r < 4; ++r) {
    const float inverse = inverse_of((high - low) * (reaches[r] / 15.0f));
    const float middle = 7.5f - 0.5f * (high + low) * inverse;
    float c = 0.0f, cx = 0.0f, cc = 0.0f;
    for (int i = 0; i < kSize; ++i) {
      const float x = g.at(i), code = nearest(x * inverse + middle, 0.0f, 15.0f);
      c += code;
      cx += code * x;
      cc += code * code;
    }
    const float spread = n * cc - c * c;
    const float slope = (n * cx - c * sum_x) * inverse_of(spread);
    const float crossing = spread > 0.0f ? (c - sum_x * inverse_of(slope)) / n : middle;
    const float zero = nearest(crossing * 16.0f, 0.0f, 255.0f) * 0.0625f;
    const float dx = cx - zero * sum_x, dd = cc - 2.0f * zero * c + n * zero * zero;
    const float candidate = dx * inverse_of(dd), explained = candidate * dx;
    if (explained > best) {
      best_scale = candidate;
      best_zero = zero;
      best = explained;
    }
  }
  Fit fit = {stored(best_scale), best_zero};
  return fit;
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
    own = metal::precise::fmax(own, metal::precise::fabs(static_cast<float>(w[i])));
  }
  most[t] = own;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (int i = 0; i < 32; ++i) own = metal::precise::fmax(own, most[t / 32 * 32 + i]);
  if (!exists) return;
  const float scale = own / 127.0f, inverse = inverse_of(scale);
  for (int64_t i = t % 32; i < kPaddedK; i += 32) {
    const float x = i < params.k ? static_cast<float>(w[i]) : 0.0f;
    codes[i] = static_cast<uint8_t>(static_cast<int>(nearest(x * inverse, -127.0f, 127.0f)));
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
