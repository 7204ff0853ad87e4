// Max and average pooling over up to three spatial dimensions, windowed or adaptive. A thread
// computes one output element, or NPUSIM_CHANNELS neighbouring channels of one, which it reads and
// writes at once; neighbouring threads take neighbouring elements of y.
#include "kernels/cuda/common/scalar_ops.h"
#include "kernels/cuda/image/positions.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using Y = Storage<params.y_dtype>;
using C = Compute<(params.x_dtype < 4 ? params.x_dtype : 0)>;  // floats hold all bytes
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
    if (params.divisor != 0) return static_cast<C>(params.divisor);
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

inline int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
}

inline void pool(int64_t item, const void* x_memory, void* y_memory, int64_t* indices) {
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

// ---- several channels at once: all windows are alike, channels contiguous in x and y

constexpr int kChannels = NPUSIM_CHANNELS;

// A window of dimension d, all of them alike: adaptive ones divide the input evenly.
struct Regular {
  int taps, stride, step, pad;
};
constexpr Regular regular(int d) {
  const int each = static_cast<int>(params.in_size[d] / params.out_size[d]);
  if (params.adaptive) return {each, each, 1, 0};
  return {static_cast<int>(params.kernel[d]), static_cast<int>(params.stride[d]),
          static_cast<int>(params.dilation[d]), static_cast<int>(params.pad[d])};
}
constexpr Regular kRegular[3] = {regular(0), regular(1), regular(2)};
constexpr int kTaps = kRegular[0].taps * kRegular[1].taps * kRegular[2].taps;

inline void pool_channels(const void* x_memory, void* y_memory) {
  constexpr int64_t kGroups = params.out_channels / kChannels;
  constexpr int kUnroll = kTaps * kChannels <= 128 ? kTaps : 64 / kChannels;
  const int64_t item = thread_index();
  if (item >= pixels(params.batch, kGroups, params.out_size)) return;
  const Pixel at = pixel_of<true>(item, kGroups, params.out_size);
  const X* x = static_cast<const X*>(x_memory) + at.n * params.x_strides[0] + at.c * kChannels;
  const int first[3] = {static_cast<int>(at.d) * kRegular[0].stride - kRegular[0].pad,
                        static_cast<int>(at.h) * kRegular[1].stride - kRegular[1].pad,
                        static_cast<int>(at.w) * kRegular[2].stride - kRegular[2].pad};
  C values[kChannels];
#pragma unroll
  for (int e = 0; e < kChannels; ++e) values[e] = kAverage ? C{0} : -kInfinity<C>;
#pragma unroll kUnroll
  for (int tap = 0; tap < kTaps; ++tap) {
    int rest = tap;
    int64_t offset = 0;
    bool inside = true;
#pragma unroll
    for (int d = 2; d >= 0; --d) {
      const int place = first[d] + rest % kRegular[d].taps * kRegular[d].step;
      rest /= kRegular[d].taps;
      inside = inside && place >= 0 && place < static_cast<int>(params.in_size[d]);
      offset += place * params.x_strides[2 + d];
    }
    Pack<X, kChannels> pack = {};
    if (inside) pack = load_pack<kChannels>(x + offset);
#pragma unroll
    for (int e = 0; e < kChannels; ++e) {
      const C value = decode<C>(pack.at[e]);
      if (kAverage) {
        values[e] += value;  // what lies outside is 0
      } else if (inside && (value > values[e] || value != value)) {
        values[e] = value;
      }
    }
  }
  if constexpr (kAverage) {
    const Window window{extent(0, at.d), extent(1, at.h), extent(2, at.w)};
    if (window.d.count * window.h.count * window.w.count > 0) {
#pragma unroll
      for (int e = 0; e < kChannels; ++e) values[e] /= window.divisor();
    }
  }
  Pack<Y, kChannels> result;
#pragma unroll
  for (int e = 0; e < kChannels; ++e) result.at[e] = encode<Y>(values[e]);
  const int64_t to = at.n * params.y_strides[0] + at.c * kChannels + at.d * params.y_strides[2] +
                     at.h * params.y_strides[3] + at.w * params.y_strides[4];
  store_pack(static_cast<Y*>(y_memory) + to, result);
}

}  // namespace npusim

#if NPUSIM_INDICES
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void* y, void* indices) {
  npusim::pool(npusim::thread_index(), x, y, static_cast<int64_t*>(indices));
}
#else
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(const void* x, void* y) {
#if NPUSIM_CHANNELS > 1
  if (npusim::is_packed<NPUSIM_CHANNELS>(static_cast<const npusim::X*>(x)) &&
      npusim::is_packed<NPUSIM_CHANNELS>(static_cast<const npusim::Y*>(y))) {
    npusim::pool_channels(x, y);
    return;
  }
#endif
  for (int e = 0; e < NPUSIM_CHANNELS; ++e) {
    npusim::pool(npusim::thread_index() * NPUSIM_CHANNELS + e, x, y, nullptr);
  }
}
#endif
