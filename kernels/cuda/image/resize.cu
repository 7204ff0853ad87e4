// Nearest, nearest-exact, linear (1 to 3 dimensions) and bicubic interpolation, with PyTorch's
// source positions (computed in float32, in float64 for float64 images). A thread computes one
// element; neighbouring threads take neighbouring elements of y.
#include "kernels/cuda/common/scalar_ops.h"
#include "kernels/cuda/image/positions.h"

namespace npusim {

enum Mode : int32_t { kNearest, kLinear, kCubic, kNearestExact };

using X = Storage<params.x_dtype>;
using Y = Storage<params.y_dtype>;
constexpr bool kIsNearest = params.mode == kNearest || params.mode == kNearestExact;
template <bool kDouble>
struct RealOf {
  using type = float;
};
template <>
struct RealOf<true> {
  using type = double;
};
using Real = typename RealOf<params.x_dtype == 3>::type;

// Where an output position reads along one dimension.
struct Taps {
  int count;
  int64_t index[4];
  Real weight[4];
};

// floor(x) brought into [low, high], whatever x is.
inline int64_t floor_within(Real x, int64_t low, int64_t high) {
  if (!(x > static_cast<Real>(low))) return low;
  if (x >= static_cast<Real>(high)) return high;
  return static_cast<int64_t>(scalar::floor(x));
}
inline int64_t within(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : (x > high ? high : x);
}
inline Real fraction(Real x) {
  return x < 0 ? Real{0} : (x > 1 ? Real{1} : x);
}

// Source positions an output position; -1 says: what the sizes give.
inline double scale_of(int d) {
  if (params.scale[d] >= 0) return params.scale[d];
  const auto in = static_cast<double>(params.in_size[d]);
  const auto out = static_cast<double>(params.out_size[d]);
  if (!params.align_corners) return in / out;
  return out > 1 ? (in - 1) / (out - 1) : 0;
}

inline Real source_position(int d, int64_t out) {
  const Real scale = static_cast<Real>(scale_of(d));
  if (params.align_corners) return scale * static_cast<Real>(out);
  return scale * (static_cast<Real>(out) + Real(0.5)) - Real(0.5);
}

inline Taps nearest_taps(int d, int64_t out) {
  const Real position =
      static_cast<Real>(out) + (params.mode == kNearestExact ? Real(0.5) : Real{0});
  const Real source = position * static_cast<Real>(scale_of(d));
  return {1, {floor_within(source, 0, params.in_size[d] - 1)}, {1}};
}

inline Taps linear_taps(int d, int64_t out) {
  const int64_t last = params.in_size[d] - 1;
  const Real source = source_position(d, out), from = source > 0 ? source : Real{0};
  const int64_t at = floor_within(from, 0, last);
  const Real right = fraction(from - static_cast<Real>(at));
  if (at == last) return {1, {at}, {1}};
  return {2, {at, at + 1}, {1 - right, right}};
}

// Keys' cubic convolution with a = -0.75 (R. Keys, "Cubic convolution interpolation for digital
// image processing", 1981): weights of a tap nearer than 1, and of one between 1 and 2 away.
inline Real cubic_near(Real x) {
  constexpr Real a = -0.75;
  return ((a + 2) * x - (a + 3)) * x * x + 1;
}
inline Real cubic_far(Real x) {
  constexpr Real a = -0.75;
  return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}
inline Taps cubic_taps(int d, int64_t out) {
  const int64_t last = params.in_size[d] - 1;
  const Real source = source_position(d, out);
  const int64_t at = floor_within(source, -2, last);
  const Real t = fraction(source - static_cast<Real>(at));
  return {4,
          {within(at - 1, 0, last), within(at, 0, last), within(at + 1, 0, last),
           within(at + 2, 0, last)},
          {cubic_far(t + 1), cubic_near(t), cubic_near(1 - t), cubic_far(2 - t)}};
}

inline Taps taps_of(int d, int64_t out) {
  if constexpr (kIsNearest) return nearest_taps(d, out);
  // A cubic resize has two dimensions; the depth of such an image is 1 on both sides.
  if (params.mode == kCubic && d > 0) return cubic_taps(d, out);
  return linear_taps(d, out);
}

inline Real blend(const X* x, const Taps& d, const Taps& h, const Taps& w) {
  constexpr int kTaps = params.mode == kCubic ? 4 : 2;
  Real sum = 0;
#pragma unroll
  for (int i = 0; i < (params.mode == kCubic ? 1 : 2); ++i) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        if (i >= d.count || j >= h.count || k >= w.count) continue;
        const int64_t from = d.index[i] * params.x_strides[2] + h.index[j] * params.x_strides[3] +
                             w.index[k] * params.x_strides[4];
        sum += d.weight[i] * h.weight[j] * w.weight[k] * decode<Real>(x[from]);
      }
    }
  }
  return sum;
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x_memory, void* y_memory) {
  using namespace npusim;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
  if (item >= pixels(params.batch, params.channels, params.out_size)) return;
  const Pixel at = pixel_of<(params.y_strides[1] == 1)>(item, params.channels, params.out_size);
  const X* x =
      static_cast<const X*>(x_memory) + at.n * params.x_strides[0] + at.c * params.x_strides[1];
  const Taps d = taps_of(0, at.d), h = taps_of(1, at.h), w = taps_of(2, at.w);
  Y* y = static_cast<Y*>(y_memory) + offset_of(at, params.y_strides);
  if constexpr (kIsNearest) {
    *y = x[d.index[0] * params.x_strides[2] + h.index[0] * params.x_strides[3] +
           w.index[0] * params.x_strides[4]];
  } else {
    *y = encode<Y>(blend(x, d, h, w));
  }
}
