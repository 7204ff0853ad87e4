// pool: max and average pooling over up to three spatial dimensions, windowed or adaptive.
// With channel stride 1 (channels last) a task computes vectors of channels, a few registers wide,
// and walks the window once for all of them; any other layout is computed element by element.
#include <algorithm>
#include <limits>

#include "kernels/cpu/check.h"
#include "kernels/cpu/storage.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::PoolParams;

enum Op { kMax, kAverage };

constexpr auto kInt8 = static_cast<int32_t>(abi::DType::kInt8);
constexpr auto kUint8 = static_cast<int32_t>(abi::DType::kUint8);

// One dimension of the window of one output position: `count` taps from `start`, `step` apart,
// all inside the input; `padded` is its length before clipping to the input proper.
struct Extent {
  int64_t start, count, step, padded;
};

Extent extent(const Params& p, int d, int64_t out) {
  const int64_t in = p.in_size[d];
  if (p.adaptive) {
    const int64_t start = out * in / p.out_size[d];
    const int64_t end = ((out + 1) * in + p.out_size[d] - 1) / p.out_size[d];
    return {start, end - start, 1, end - start};
  }
  const int64_t step = p.dilation[d];
  const int64_t first = out * p.stride[d] - p.pad[d];
  const int64_t last = first + (p.kernel[d] - 1) * step;
  const int64_t start = first < 0 ? first + (step - 1 - first) / step * step : first;
  const int64_t end = std::min(last, in - 1);
  const int64_t padded = std::min(first + p.kernel[d], in + p.pad[d]) - first;
  return {start, start <= end ? (end - start) / step + 1 : 0, step, padded};
}

// The window of one output position.
struct Window {
  Extent d, h, w;
  int64_t x;         // offset of its first tap, channel 0
  int64_t position;  // of its first tap in the row-major input plane

  int64_t count() const { return d.count * h.count * w.count; }
};

Window window_at(const Params& p, int64_t n, int64_t d, int64_t h, int64_t w) {
  Window out{extent(p, 0, d), extent(p, 1, h), extent(p, 2, w), 0, 0};
  if (out.count() == 0) return out;
  out.x = n * p.x_strides[0] + out.d.start * p.x_strides[2] + out.h.start * p.x_strides[3] +
          out.w.start * p.x_strides[4];
  out.position = (out.d.start * p.in_size[1] + out.h.start) * p.in_size[2] + out.w.start;
  return out;
}

double divisor(const Params& p, const Window& window) {
  if (p.divisor != 0) return static_cast<double>(p.divisor);
  if (!p.count_include_pad) return static_cast<double>(window.count());
  return static_cast<double>(window.d.padded) * static_cast<double>(window.h.padded) *
         static_cast<double>(window.w.padded);
}

// Calls f(offset into x, position in the input plane) for every tap in row-major order.
template <typename F>
inline void for_each_tap(const Params& p, const Window& window, F&& f) {
  for (int64_t i = 0; i < window.d.count; ++i) {
    const int64_t d = i * window.d.step;
    for (int64_t j = 0; j < window.h.count; ++j) {
      const int64_t h = j * window.h.step;
      const int64_t offset = window.x + d * p.x_strides[2] + h * p.x_strides[3];
      const int64_t position = window.position + (d * p.in_size[1] + h) * p.in_size[2];
      for (int64_t k = 0; k < window.w.count; ++k) {
        const int64_t w = k * window.w.step;
        f(offset + w * p.x_strides[4], position + w);
      }
    }
  }
}

struct Operands {
  const void* x;
  void* y;
  int64_t* indices;  // nullptr: not wanted
};

// kVectors vectors of channels; Partial: the last `part` < kLanes channels (kVectors is 1).
// Offsets are those of the first channel.
template <int kVectors, bool Partial, typename T>
inline void average_channels(const Params& p, const Window& window, const T* x, void* y, int64_t at,
                             int64_t part) {
  Vec sum[kVectors] = {};
  for_each_tap(p, window, [&](int64_t offset, int64_t) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[v] += Partial ? load_part(x + offset, part) : load(x + offset + v * kLanes);
    }
  });
  const Vec scale = broadcast(static_cast<float>(divisor(p, window)));
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Vec mean = window.count() ? sum[v] / scale : Vec{};
    store_as(p.y_dtype, y, at + v * kLanes, mean, Partial ? part : kLanes);
  }
}

// As in PyTorch, a NaN takes over from whatever came before it, and so does its index.
template <int kVectors, bool Partial, bool Indices, typename T>
inline void max_channels(const Params& p, const Window& window, const T* x, void* y,
                         int64_t* indices, int64_t at, int64_t part) {
  Vec top[kVectors];
  IVec where[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    top[v] = broadcast(-std::numeric_limits<float>::infinity());
    where[v] = IVec{} + static_cast<int32_t>(window.position);
  }
  for_each_tap(p, window, [&](int64_t offset, int64_t position) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec x_v = Partial ? load_part(x + offset, part) : load(x + offset + v * kLanes);
      const IVec wins = (x_v > top[v]) | (x_v != x_v);
      top[v] = wins ? x_v : top[v];
      if constexpr (Indices) where[v] = wins ? IVec{} + static_cast<int32_t>(position) : where[v];
    }
  });
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t n = Partial ? part : kLanes;
    store_as(p.y_dtype, y, at + v * kLanes, top[v], n);
    if constexpr (Indices) {
      for (int64_t i = 0; i < n; ++i) indices[at + v * kLanes + i] = where[v][i];
    }
  }
}

template <int kVectors, bool Partial, typename T>
inline void pool_channels(const Params& p, const Window& window, const Operands& to,
                          int64_t channel, int64_t at, int64_t part) {
  const T* x = static_cast<const T*>(to.x) + channel;
  if (p.op == kAverage) {
    average_channels<kVectors, Partial>(p, window, x, to.y, at + channel, part);
  } else if (to.indices) {
    max_channels<kVectors, Partial, true>(p, window, x, to.y, to.indices, at + channel, part);
  } else {
    max_channels<kVectors, Partial, false>(p, window, x, to.y, nullptr, at + channel, part);
  }
}

// Channels [begin, end) of one output position, channel stride 1 everywhere.
template <typename T>
void pool_vectors(const Params& p, const Window& window, const Operands& to, int64_t begin,
                  int64_t end, int64_t at) {
  constexpr int kMany = 4;
  int64_t c = begin;
  for (; c + kMany * kLanes <= end; c += kMany * kLanes) {
    pool_channels<kMany, false, T>(p, window, to, c, at, 0);
  }
  for (; c + kLanes <= end; c += kLanes) pool_channels<1, false, T>(p, window, to, c, at, 0);
  if (c < end) pool_channels<1, true, T>(p, window, to, c, at, end - c);
}

// The same for any strides and for float64.
template <typename T>
void pool_scalars(const Params& p, const Window& window, const Operands& to, int64_t begin,
                  int64_t end, int64_t at) {
  using Real = decltype(to_real(T{}));
  for (int64_t c = begin; c < end; ++c) {
    const T* x = static_cast<const T*>(to.x) + c * p.x_strides[1];
    const int64_t y = at + c * p.y_strides[1];
    Real value = p.op == kMax ? -std::numeric_limits<Real>::infinity() : 0;
    int64_t where = window.position;
    for_each_tap(p, window, [&](int64_t offset, int64_t position) {
      const Real tap = to_real(x[offset]);
      if (p.op == kAverage) {
        value += tap;
      } else if (tap > value || tap != tap) {
        value = tap;
        where = position;
      }
    });
    if (p.op == kAverage && window.count()) value /= static_cast<Real>(divisor(p, window));
    store_as(p.y_dtype, to.y, y, value);
    if (to.indices) to.indices[y] = where;
  }
}

bool is_channels_last(const Params& p) {
  const bool unit = (p.x_strides[1] == 1 && p.y_strides[1] == 1) || p.out_channels == 1;
  return unit && p.in_size[0] * p.in_size[1] * p.in_size[2] <= INT32_MAX;
}

// The largest of bytes that are contiguous, as many channels at a time, from `begin` on; the last
// ones once more with some before them. Returns where it ends: `begin` where they are fewer.
template <int64_t kBytes, typename T>
int64_t pool_byte_vectors(const Params& p, const Window& window, const T* x, T* y, int64_t begin,
                          int64_t end) {
  using Bytes = VectorOf<T, kBytes>;
  if (end - begin < kBytes) return begin;
  for (int64_t c = begin; c < end; c += kBytes) {
    const int64_t channel = std::min(c, end - kBytes);
    typename Bytes::type top = typename Bytes::type{} + std::numeric_limits<T>::min();
    for_each_tap(p, window, [&](int64_t offset, int64_t) {
      const auto v = *reinterpret_cast<const typename Bytes::unaligned*>(x + offset + channel);
      top = v > top ? v : top;
    });
    *reinterpret_cast<typename Bytes::unaligned*>(y + channel) = top;
  }
  return end;
}

template <typename T>
void pool_bytes(const Params& p, const Window& window, const Operands& to, int64_t begin,
                int64_t end, int64_t at) {
  const T lowest = std::numeric_limits<T>::min();
  const T* x = static_cast<const T*>(to.x);
  T* y = static_cast<T*>(to.y) + at;
  int64_t c = begin;
  if (is_channels_last(p)) c = pool_byte_vectors<4 * kLanes>(p, window, x, y, c, end);
  if (is_channels_last(p)) c = pool_byte_vectors<16>(p, window, x, y, c, end);
  for (; c < end; ++c) {
    T top = lowest;
    for_each_tap(p, window, [&](int64_t offset, int64_t) {
      const T v = x[offset + c * p.x_strides[1]];
      top = v > top ? v : top;
    });
    y[c * p.y_strides[1]] = top;
  }
}

// How the work splits into tasks: rows of output positions (batch, depth, height) and, where rows
// are few and windows large, chunks of channels.
struct Split {
  int64_t rows, rows_per_task, channels_per_task, channel_chunks;

  explicit Split(const Params& p) {
    constexpr double kTaps = 16384;  // what a task should have to read at least
    constexpr int64_t kFewRows = 16, kChannelGrain = 64;
    rows = p.out_size[2] == 0 ? 0 : p.batch * p.out_size[0] * p.out_size[1];
    double taps = 1;  // a channel of a row, about
    for (int d = 0; d < 3; ++d) {
      const auto out = static_cast<double>(std::max<int64_t>(1, p.out_size[d]));
      taps *= static_cast<double>(p.adaptive ? p.in_size[d] : p.kernel[d]) / (p.adaptive ? out : 1);
      if (d == 2) taps *= out;
    }
    taps = std::max(taps, 1.0);
    const auto channels = static_cast<double>(p.out_channels);
    rows_per_task = static_cast<int64_t>(std::max(1.0, kTaps / std::max(taps * channels, 1.0)));
    const bool few = rows < kFewRows && taps * channels > kTaps;
    const int64_t grain = static_cast<int64_t>(kTaps / taps) / kChannelGrain * kChannelGrain;
    channels_per_task = few ? std::max(grain, kChannelGrain) : std::max<int64_t>(1, p.out_channels);
    channel_chunks = (p.out_channels + channels_per_task - 1) / channels_per_task;
  }
  int64_t tasks() const { return (rows + rows_per_task - 1) / rows_per_task * channel_chunks; }
};

// Calls f(window, offset of y) for the output positions of a row.
template <typename F>
void for_each_position(const Params& p, int64_t row, F&& f) {
  const int64_t h = row % p.out_size[1], outer = row / p.out_size[1];
  const int64_t d = outer % p.out_size[0], n = outer / p.out_size[0];
  const int64_t y = n * p.y_strides[0] + d * p.y_strides[2] + h * p.y_strides[3];
  for (int64_t w = 0; w < p.out_size[2]; ++w) f(window_at(p, n, d, h, w), y + w * p.y_strides[4]);
}

template <typename T>
void pool(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Split split(p);
  const bool channels_last = is_channels_last(p);
  const Operands to{call.operands[0], call.operands[1],
                    p.has_indices ? static_cast<int64_t*>(call.operands[2]) : nullptr};
  for (int64_t task = call.begin; task < call.end; ++task) {
    const int64_t first = task / split.channel_chunks * split.rows_per_task;
    const int64_t begin = task % split.channel_chunks * split.channels_per_task;
    const int64_t end = std::min(begin + split.channels_per_task, p.out_channels);
    for (int64_t row = first; row < std::min(first + split.rows_per_task, split.rows); ++row) {
      for_each_position(p, row, [&](const Window& window, int64_t at) {
        if constexpr (sizeof(T) == 1) {
          pool_bytes<T>(p, window, to, begin, end, at);
        } else {
          if constexpr (!std::is_same_v<T, double>) {
            if (channels_last) return pool_vectors<T>(p, window, to, begin, end, at);
          }
          pool_scalars<T>(p, window, to, begin, end, at);
        }
      });
    }
  }
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  if (p.x_dtype == kInt8) return pool<int8_t>(call);
  if (p.x_dtype == kUint8) return pool<uint8_t>(call);
  with_real_type(p.x_dtype, [&](auto type) { pool<decltype(type)>(call); });
}

int64_t tasks(const void* params, int64_t) {
  return Split(*static_cast<const Params*>(params)).tasks();
}

int64_t scratch(const void*) {
  return 0;
}

// Positions are computed with products of these; in this range none leaves int64.
bool in_range(const Params& p, int d) {
  constexpr int64_t kMost = INT32_MAX;
  const auto within = [](int64_t value, int64_t low) { return value >= low && value <= kMost; };
  if (!within(p.in_size[d], 0) || !within(p.out_size[d], 0)) return false;
  if (p.adaptive) return true;
  return within(p.kernel[d], 1) && within(p.stride[d], 0) && within(p.dilation[d], 1) &&
         within(p.pad[d], 0) && p.kernel[d] * p.dilation[d] <= kMost;
}

const char* check_fields(const Params& p) {
  if (!is_flag(p.adaptive) || !is_flag(p.has_indices)) return "a flag is neither 0 nor 1";
  if (p.op != kMax && p.op != kAverage) return "there is no such pooling";
  if (p.op == kAverage && p.has_indices) return "an average has no indices";
  for (int d = 0; d < 3; ++d) {
    if (!in_range(p, d)) return "a window's geometry is out of range";
    if (p.op == kAverage && !p.adaptive && p.dilation[d] != 1) return "an average has no dilation";
  }
  if (p.in_channels != p.out_channels) return "it changes the number of channels";
  if (product(p.in_size, 3) < 0) return "an image is too large";
  if (p.x_dtype == kInt8 || p.x_dtype == kUint8) {
    const bool largest = p.op == kMax && !p.has_indices && p.y_dtype == p.x_dtype;
    return largest ? nullptr : "of bytes there is but the largest";
  }
  const bool real = is_float(p.x_dtype) && is_float(p.y_dtype);
  if (!real && (p.x_dtype != kFloat64 || p.y_dtype != kFloat64)) return "the dtypes are not floats";
  return nullptr;
}

Region walk(const Params& p, const int64_t* size, const int64_t* strides) {
  return Region()
      .dim(p.batch, strides[0])
      .dim(p.out_channels, strides[1])
      .dims(size, strides + 2, 3);
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_fields(p)) return why;
  if (const char* why = operand_count(c, p.has_indices ? 3 : 2)) return why;
  const Region x = walk(p, p.in_size, p.x_strides), y = walk(p, p.out_size, p.y_strides);
  if (const char* why = x.reads(c, 0, element_size(p.x_dtype))) return why;
  if (const char* why = y.writes(c, 1, element_size(p.y_dtype))) return why;
  return p.has_indices ? y.writes(c, 2, sizeof(int64_t)) : nullptr;
}

int outputs(const void* params) {
  return static_cast<const Params*>(params)->has_indices ? 2 : 1;
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  const int64_t outputs = saturated({p.batch, p.out_channels, saturated(p.out_size, 3)});
  int64_t taps = 1;
  for (int d = 0; d < 3; ++d) {
    const int64_t adaptive = p.in_size[d] / std::max<int64_t>(p.out_size[d], 1) + 2;
    taps = saturated({taps, std::min(p.in_size[d], p.adaptive ? adaptive : p.kernel[d])});
  }
  return saturated({outputs, 1 + taps});
}

}  // namespace

extern const KernelEntry pool_kernel;
const KernelEntry pool_kernel = {"pool", Params::kSchema, sizeof(Params), run,     check,
                                 tasks,  scratch,         outputs,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
