// How a group of a weight is quantized to int4: for a few candidate ranges the codes are found,
// then the scale (and zero point, in sixteenths) that minimises the squared error for these codes,
// and the best candidate is kept.
#pragma once
#include "kernels/device/scalar.h"

namespace npusim {

using W = Storage<params.x_dtype>;
NPUSIM_CONSTANT constexpr int kSize = params.format == 1 ? 128 : static_cast<int>(params.group);

inline float inverse_of(float x) {
  return x != 0.0f ? 1.0f / x : 0.0f;
}
inline float bounded(float x, float lo, float hi) {
  return lesser_number(larger_number(x, lo), hi);
}
// The scale as it will be stored: a float16.
inline float stored(float scale) {
  if (magnitude(scale) < 5.96046448e-08f) return 0.0f;
  return decode<float>(encode<Storage<1>>(bounded(scale, -65504.0f, 65504.0f)));
}

struct Fit {
  float scale, zero;
};

// Element i of a group; 0 beyond the row.
struct Group {
  NPUSIM_GLOBAL const W* w;
  int64_t valid;
  float at(int i) const { return i < valid ? decode<float>(w[i]) : 0.0f; }
};

inline Fit fit_symmetric(NPUSIM_THREAD const Group& g) {
  float low = 0.0f, high = 0.0f;
  for (int i = 0; i < kSize; ++i) {
    low = lesser_number(low, g.at(i));
    high = larger_number(high, g.at(i));
  }
  const float reaches[] = {1.09f, 1.0f, 0.93f, 0.86f, 0.8f};
  const float extreme = -low > high ? low : high;  // the code that reaches further is -8
  float best = 0.0f, scale = extreme / -8.0f;
  for (const float reach : reaches) {
    const float inverse = inverse_of(extreme * (reach / -8.0f));
    float cx = 0.0f, cc = 0.0f;
    for (int i = 0; i < kSize; ++i) {
      const float x = g.at(i), code = rounded(bounded(x * inverse, -8.0f, 7.0f));
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

inline Fit fit_asymmetric(NPUSIM_THREAD const Group& g) {
  constexpr float n = kSize, kStep = 0.0625f;
  float low = 0.0f, high = 0.0f, sum_x = 0.0f;
  for (int i = 0; i < kSize; ++i) {
    low = lesser_number(low, g.at(i));
    high = larger_number(high, g.at(i));
    sum_x += g.at(i);
  }
  const float reaches[] = {1.0f, 0.93f, 0.86f, 0.8f};
  float best = 0.0f, best_scale = (high - low) / 15.0f, best_zero = 0.0f;
  for (const float reach : reaches) {
    const float inverse = inverse_of((high - low) * (reach / 15.0f));
    const float middle = 7.5f - 0.5f * (high + low) * inverse;
    float c = 0.0f, cx = 0.0f, cc = 0.0f;
    for (int i = 0; i < kSize; ++i) {
      const float x = g.at(i), code = rounded(bounded(x * inverse + middle, 0.0f, 15.0f));
      c += code;
      cx += code * x;
      cc += code * code;
    }
    const float spread = n * cc - c * c;
    const float line = (n * cx - c * sum_x) * inverse_of(spread);
    const float crossing = spread > 0.0f ? (c - sum_x * inverse_of(line)) / n : middle;
    const float zero = rounded(bounded(crossing / kStep, 0.0f, 255.0f)) * kStep;
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

}  // namespace npusim
