// Quantizes the rows of a weight, once, at load (quantized_layout.h has the layout). int8: a warp a
// row. int4: a thread a group; for a few candidate ranges the codes are found, then the scale (and
// zero point) that minimises the squared error for these codes, and the best candidate is kept.
#include "kernels/cuda/quantization/quantized_layout.h"

namespace npusim {

using W = Storage<params.x_dtype>;
constexpr int kSize = kBytes ? 128 : static_cast<int>(params.group);  // of a group

inline float inverse_of(float x) {
  return x != 0.0f ? 1.0f / x : 0.0f;
}
inline float bounded(float x, float lo, float hi) {
  return fminf(fmaxf(x, lo), hi);
}
// The scale as it will be stored.
inline float stored(float scale) {
  return fabsf(scale) < 0x1p-24f ? 0.0f : to_float(to_float16(bounded(scale, -65504, 65504)));
}

inline void quantize_row(const W* w, int64_t row, uint8_t* to) {
  const int lane = threadIdx.x % 32;
  float most = 0.0f;
  for (int64_t i = lane; i < params.k; i += 32) most = fmaxf(most, fabsf(to_float(w[i])));
#pragma unroll
  for (int far = 16; far > 0; far /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, far));
  }
  const float scale = most / 127.0f, inverse = inverse_of(scale);
  for (int64_t i = lane; i < kPaddedK; i += 32) {
    const float x = i < params.k ? to_float(w[i]) : 0.0f;
    to[row * kCodes + i] =
        static_cast<uint8_t>(static_cast<int>(rintf(bounded(x * inverse, -127.0f, 127.0f))));
  }
  if (lane == 0) reinterpret_cast<float*>(to + lines(params.rows * kCodes))[row] = scale;
}

struct Fit {
  float scale, zero;
};

// Element i of a group; 0 beyond the row.
struct Group {
  const W* w;
  int64_t valid;
  float at(int i) const { return i < valid ? to_float(w[i]) : 0.0f; }
};

inline Fit fit_symmetric(const Group& g) {
  float low = 0.0f, high = 0.0f;
  for (int i = 0; i < kSize; ++i) {
    low = fminf(low, g.at(i));
    high = fmaxf(high, g.at(i));
  }
  const float reaches[] = {1.09f, 1.0f, 0.93f, 0.86f, 0.8f};
  const float extreme = -low > high ? low : high;  // the code that reaches further is -8
  float best = 0.0f, scale = extreme / -8.0f;
  for (const float reach : reaches) {
    const float inverse = inverse_of(extreme * (reach / -8.0f));
    float cx = 0.0f, cc = 0.0f;
    for (int i = 0; i < kSize; ++i) {
      const float x = g.at(i), code = rintf(bounded(x * inverse, -8.0f, 7.0f));
      cx += code * x;
      cc += code * code;
    }
    const float candidate = cx * inverse_of(cc), explained = candidate * cx;
    if (explained > best) {
      scale = candidate;
      best = explained;
    }
  }
  return {stored(scale), 8.0f};
}

inline Fit fit_asymmetric(const Group& g) {
  constexpr float n = kSize;
  float low = 0.0f, high = 0.0f, sum_x = 0.0f;
  for (int i = 0; i < kSize; ++i) {
    low = fminf(low, g.at(i));
    high = fmaxf(high, g.at(i));
    sum_x += g.at(i);
  }
  const float reaches[] = {1.0f, 0.93f, 0.86f, 0.8f};
  float best = 0.0f, best_scale = (high - low) / 15.0f, best_zero = 0.0f;
  for (const float reach : reaches) {
    const float inverse = inverse_of((high - low) * (reach / 15.0f));
    const float middle = 7.5f - 0.5f * (high + low) * inverse;
    float c = 0.0f, cx = 0.0f, cc = 0.0f;
    for (int i = 0; i < kSize; ++i) {
      const float x = g.at(i), code = rintf(bounded(x * inverse + middle, 0.0f, 15.0f));
      c += code;
      cx += code * x;
      cc += code * code;
    }
    const float spread = n * cc - c * c;
    const float line = (n * cx - c * sum_x) * inverse_of(spread);
    const float crossing = spread > 0.0f ? (c - sum_x * inverse_of(line)) / n : middle;
    const float zero = rintf(bounded(crossing / kZeroStep, 0.0f, 255.0f)) * kZeroStep;
    const float dx = cx - zero * sum_x, dd = cc - 2.0f * zero * c + n * zero * zero;
    const float candidate = dx * inverse_of(dd), explained = candidate * dx;
    if (explained > best) {
      best_scale = candidate;
      best_zero = zero;
      best = explained;
    }
  }
  return {stored(best_scale), best_zero};
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
