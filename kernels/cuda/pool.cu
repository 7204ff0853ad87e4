// Max and average pooling over up to three spatial dimensions, windowed or adaptive. A thread
// computes one output element; neighbouring threads take neighbouring elements of y.
#include "kernels/cuda/scalar_ops.h"
#include "kernels/cuda/window.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using Y = Storage<params.y_dtype>;
using C = Compute<params.x_dtype>;
constexpr bool kAverage = params.op == 1;

// One dimension of a window: `count` taps from `start`, `step` apart, all inside the input;
// `padded` is its length before clipping to the input proper.
struct Extent {
  int64_t start, count, step, padded;
};

inline Extent extent(int d, int64_t out) {
  const int64_t in = params.in_size[d];
  if (params.adaptive) {
    const int64_t start = out * in / params.out_size[d];
    const int64_t end = ((out + 1) * in + params.out_size[d] - 1) / params.out_size[d];
    return {start, end - start, 1, end - start};
  }
  const int64_t step = params.dilation[d];
  const int64_t first = out * params.stride[d] - params.pad[d];
  const int64_t last = first + (params.kernel[d] - 1) * step;
  const int64_t start = first < 0 ? first + (step - 1 - first) / step * step : first;
  const int64_t end = last < in - 1 ? last : in - 1;
  const int64_t back = in + params.pad[d];
  const int64_t padded =
      (first + params.kernel[d] < back ? first + params.kernel[d] : back) - first;
  return {start, start <= end ? (end - start) / step + 1 : 0, step, padded};
}

struct Window {
  Extent d, h, w;

  C divisor() const {
    if (params.divisor > 0) return static_cast<C>(params.divisor);
    if (!params.count_include_pad) return static_cast<C>(d.count * h.count * w.count);
    return static_cast<C>(d.padded) * static_cast<C>(h.padded) * static_cast<C>(w.padded);
  }
  // Calls f(offset into x, position in the input plane) for every tap in row-major order.
  template <typename F>
  void for_each_tap(F f) const {
    for (int64_t i = 0; i < d.count; ++i) {
      const int64_t z = d.start + i * d.step;
      for (int64_t j = 0; j < h.count; ++j) {
        const int64_t y = h.start + j * h.step;
        const int64_t row = z * params.x_strides[2] + y * params.x_strides[3];
        for (int64_t k = 0; k < w.count; ++k) {
          const int64_t x = w.start + k * w.step;
          f(row + x * params.x_strides[4], (z * params.in_size[1] + y) * params.in_size[2] + x);
        }
      }
    }
  }
};

inline void pool(const void* x_memory, void* y_memory, int64_t* indices) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
  if (item >= pixels(params.batch, params.out_channels, params.out_size)) return;
  const Pixel at = pixel_of<(params.y_strides[1] == 1)>(item, params.out_channels, params.out_size);
  const Window window{extent(0, at.d), extent(1, at.h), extent(2, at.w)};
  const X* x =
      static_cast<const X*>(x_memory) + at.n * params.x_strides[0] + at.c * params.x_strides[1];
  // As in PyTorch, a NaN takes over from whatever came before it, and so does its index.
  C value = kAverage ? C{0} : -kInfinity<C>;
  int64_t where =
      (window.d.start * params.in_size[1] + window.h.start) * params.in_size[2] + window.w.start;
  window.for_each_tap([&](int64_t offset, int64_t position) {
    const C tap = decode<C>(x[offset]);
    if (kAverage) {
      value += tap;
    } else if (tap > value || tap != tap) {
      value = tap;
      where = position;
    }
  });
  if (kAverage && window.d.count * window.h.count * window.w.count > 0) value /= window.divisor();
  const int64_t to = offset_of(at, params.y_strides);
  static_cast<Y*>(y_memory)[to] = encode<Y>(value);
  if (indices != nullptr) indices[to] = where;
}

}  // namespace npusim

#if NPUSIM_INDICES
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void* y, void* indices) {
  npusim::pool(x, y, static_cast<int64_t*>(indices));
}
#else
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(const void* x, void* y) {
  npusim::pool(x, y, nullptr);
}
#endif
