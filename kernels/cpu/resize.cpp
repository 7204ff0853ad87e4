// resize: nearest, nearest-exact, linear (1 to 3 dimensions) and bicubic interpolation, with
// PyTorch's source positions (computed in float32, in float64 for float64 images).
// The taps of an output position are listed once and applied to all its channels: as vectors when
// channels are contiguous, one by one otherwise. Where an image of contiguous channels becomes no
// narrower, the lines that a row reads are blended first, once for all its positions.
#include <algorithm>

#include "kernels/cpu/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/cpu/to_rows.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ResizeParams;

enum Mode { kNearest, kLinear, kCubic, kNearestExact, kModes };

bool is_nearest(const Params& p) {
  return p.mode == kNearest || p.mode == kNearestExact;
}

// Where an output position reads along one dimension.
template <typename Real>
struct Taps {
  int count = 0;
  int64_t index[4];
  Real weight[4];

  void add(int64_t at, Real w) {
    index[count] = at;
    weight[count++] = w;
  }
};

// floor(x) brought into [low, high], whatever x is.
template <typename Real>
int64_t floor_within(Real x, int64_t low, int64_t high) {
  if (!(x > static_cast<Real>(low))) return low;
  if (x >= static_cast<Real>(high)) return high;
  const auto truncated = static_cast<int64_t>(x);
  return truncated - (static_cast<Real>(truncated) > x);
}

// Source positions an output position. A scale of -1 is what the sizes give: they may be known only
// at the call.
double scale_of(const Params& p, int d) {
  if (p.scale[d] >= 0) return p.scale[d];
  const auto in = static_cast<double>(p.in_size[d]), out = static_cast<double>(p.out_size[d]);
  if (!p.align_corners) return in / out;
  return out > 1 ? (in - 1) / (out - 1) : 0;
}

template <typename Real>
Taps<Real> nearest_taps(const Params& p, int d, int64_t out) {
  const Real position = static_cast<Real>(out) + (p.mode == kNearestExact ? Real{0.5} : Real{0});
  Taps<Real> taps;
  taps.add(floor_within(position * static_cast<Real>(scale_of(p, d)), 0, p.in_size[d] - 1), 1);
  return taps;
}

template <typename Real>
Real source_position(const Params& p, int d, int64_t out) {
  const Real scale = static_cast<Real>(scale_of(p, d));
  if (p.align_corners) return scale * static_cast<Real>(out);
  return scale * (static_cast<Real>(out) + Real{0.5}) - Real{0.5};
}

// As PyTorch on the CPU, two taps even where one weighs nothing, for zero times infinity is NaN;
// and a dimension that keeps its size reads no neighbour. One of size 1 may be none of the image's.
template <typename Real>
Taps<Real> linear_taps(const Params& p, int d, int64_t out) {
  const int64_t last = p.in_size[d] - 1;
  Taps<Real> taps;
  if (p.in_size[d] == p.out_size[d]) {
    taps.add(out, 1);
    if (last > 0) taps.add(out, 0);
    return taps;
  }
  const Real source = std::max(source_position<Real>(p, d, out), Real{0});
  const int64_t at = floor_within(source, 0, last);
  const Real right = std::min(std::max(source - static_cast<Real>(at), Real{0}), Real{1});
  taps.add(at, 1 - right);
  taps.add(std::min(at + 1, last), right);
  return taps;
}

// Keys' cubic convolution with a = -0.75 (R. Keys, "Cubic convolution interpolation for digital
// image processing", 1981): weights of a tap nearer than 1, and of one between 1 and 2 away.
template <typename Real>
Real cubic_near(Real x) {
  constexpr Real a{-0.75};
  return ((a + 2) * x - (a + 3)) * x * x + 1;
}
template <typename Real>
Real cubic_far(Real x) {
  constexpr Real a{-0.75};
  return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

template <typename Real>
Taps<Real> cubic_taps(const Params& p, int d, int64_t out) {
  const int64_t last = p.in_size[d] - 1;
  const Real source = source_position<Real>(p, d, out);
  const int64_t at = floor_within(source, -2, last);
  const Real t = std::min(std::max(source - static_cast<Real>(at), Real{0}), Real{1});
  const Real weights[] = {cubic_far(t + 1), cubic_near(t), cubic_near(1 - t), cubic_far(2 - t)};
  Taps<Real> taps;
  for (int i = 0; i < 4; ++i) taps.add(std::clamp<int64_t>(at - 1 + i, 0, last), weights[i]);
  return taps;
}

template <typename Real>
Taps<Real> taps_of(const Params& p, int d, int64_t out) {
  if (is_nearest(p)) return nearest_taps<Real>(p, d, out);
  // A cubic resize has two dimensions; the depth of such an image is 1 on both sides.
  if (p.mode == kCubic && d > 0) return cubic_taps<Real>(p, d, out);
  return linear_taps<Real>(p, d, out);
}

// All taps of one output position: offsets into x of channel 0, and weights.
template <typename Real>
struct Stencil {
  int count = 0;
  int64_t offset[16];
  Real weight[16];

  Stencil(const Params& p, int64_t image, const Taps<Real>& d, const Taps<Real>& h,
          const Taps<Real>& w) {
    for (int i = 0; i < d.count; ++i) {
      for (int j = 0; j < h.count; ++j) {
        const int64_t row = image + d.index[i] * p.x_strides[2] + h.index[j] * p.x_strides[3];
        for (int k = 0; k < w.count; ++k) {
          offset[count] = row + w.index[k] * p.x_strides[4];
          weight[count++] = d.weight[i] * h.weight[j] * w.weight[k];
        }
      }
    }
  }
};

template <typename T>
void blend_vectors(const Params& p, const Stencil<float>& stencil, const T* x, void* y,
                   int64_t at) {
  for (int64_t c = 0; c < p.channels; c += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, p.channels - c);
    Vec sum{};
    for (int i = 0; i < stencil.count; ++i) {
      const T* tap = x + stencil.offset[i] + c;
      sum += stencil.weight[i] * (n == kLanes ? load(tap) : load_part(tap, n));
    }
    store_as(p.y_dtype, y, at + c, sum, n);
  }
}

template <typename T, typename Real>
void blend_scalars(const Params& p, const Stencil<Real>& stencil, const T* x, void* y, int64_t at) {
  for (int64_t c = 0; c < p.channels; ++c) {
    Real sum = 0;
    for (int i = 0; i < stencil.count; ++i) {
      sum += stencil.weight[i] * to_real(x[stencil.offset[i] + c * p.x_strides[1]]);
    }
    store_as(p.y_dtype, y, at + c * p.y_strides[1], sum);
  }
}

template <typename T>
void move_channels(const Params& p, const T* x, T* y) {
  if (p.x_strides[1] == 1 && p.y_strides[1] == 1) {
    std::memcpy(y, x, static_cast<size_t>(p.channels) * sizeof(T));
    return;
  }
  for (int64_t c = 0; c < p.channels; ++c) y[c * p.y_strides[1]] = x[c * p.x_strides[1]];
}

// Work splits into rows of output positions (batch, depth, height).
struct Rows {
  int64_t count, per_task;

  explicit Rows(const Params& p) {
    constexpr int64_t kElementsPerTask = 8192;
    const int64_t row = p.out_size[2] * p.channels;
    count = row == 0 ? 0 : p.batch * p.out_size[0] * p.out_size[1];
    per_task = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, row));
  }
  int64_t tasks() const { return (count + per_task - 1) / per_task; }
};

// Calls f(image, taps of depth, taps of height, offset of y) for the output rows of a call; `image`
// is the offset of x.
template <typename Real, typename F>
void for_each_row(const KernelCall& call, F&& f) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Rows rows(p);
  const int64_t end = std::min(call.end * rows.per_task, rows.count);
  for (int64_t row = call.begin * rows.per_task; row < end; ++row) {
    const int64_t h = row % p.out_size[1], outer = row / p.out_size[1];
    const int64_t d = outer % p.out_size[0], n = outer / p.out_size[0];
    const Taps<Real> d_taps = taps_of<Real>(p, 0, d), h_taps = taps_of<Real>(p, 1, h);
    const int64_t y = n * p.y_strides[0] + d * p.y_strides[2] + h * p.y_strides[3];
    f(n * p.x_strides[0], d_taps, h_taps, y);
  }
}

// Calls f(stencil, offset of y) for the output positions of a call.
template <typename Real, typename F>
void for_each_position(const KernelCall& call, F&& f) {
  const auto& p = *static_cast<const Params*>(call.params);
  for_each_row<Real>(call, [&](int64_t image, const Taps<Real>& d, const Taps<Real>& h, int64_t y) {
    for (int64_t w = 0; w < p.out_size[2]; ++w) {
      f(Stencil<Real>(p, image, d, h, taps_of<Real>(p, 2, w)), y + w * p.y_strides[4]);
    }
  });
}

// Channels of a blended line that are in scratch at a time, in whole vectors; 0: lines are not
// blended by themselves.
int64_t line_channels(const Params& p) {
  constexpr int64_t kLineBytes = 1 << 17;
  const bool contiguous = p.x_strides[1] == 1 && p.y_strides[1] == 1 && p.channels > 1;
  // Of no images, sizes are held to nothing.
  const bool blends = !is_nearest(p) && p.x_dtype != kFloat64 && p.batch > 0;
  if (!blends || !contiguous || p.in_size[2] > p.out_size[2]) return 0;
  const int64_t most = kLineBytes / (int64_t{sizeof(float)} * p.in_size[2]) / kLanes * kLanes;
  return std::min(std::max<int64_t>(most, kLanes), round_up(p.channels, kLanes));
}

// line[w][c] = the sum of the taps of depth and height, of `count` channels from x on.
template <typename T>
void blend_line(const Params& p, const Taps<float>& d, const Taps<float>& h, const T* x,
                int64_t count, float* line, int64_t line_stride) {
  const T* from[16];
  float weight[16];
  int taps = 0;
  for (int i = 0; i < d.count; ++i) {
    for (int j = 0; j < h.count; ++j) {
      from[taps] = x + d.index[i] * p.x_strides[2] + h.index[j] * p.x_strides[3];
      weight[taps++] = d.weight[i] * h.weight[j];
    }
  }
  for (int64_t w = 0; w < p.in_size[2]; ++w, line += line_stride) {
    for (int64_t c = 0; c < count; c += kLanes) {
      const int64_t at = w * p.x_strides[4] + c;
      Vec sum = weight[0] * load_lanes(from[0] + at, count - c);
      for (int i = 1; i < taps; ++i) sum += weight[i] * load_lanes(from[i] + at, count - c);
      store(line + c, sum);
    }
  }
}

// The same along a line, to y.
template <typename T>
void blend_columns(const Params& p, const float* line, int64_t line_stride, int64_t count, T* y) {
  for (int64_t w = 0; w < p.out_size[2]; ++w, y += p.y_strides[4]) {
    const Taps<float> taps = taps_of<float>(p, 2, w);
    for (int64_t c = 0; c < count; c += kLanes) {
      Vec sum = taps.weight[0] * load(line + taps.index[0] * line_stride + c);
      for (int i = 1; i < taps.count; ++i) {
        sum += taps.weight[i] * load(line + taps.index[i] * line_stride + c);
      }
      store_lanes(y + c, sum, count - c);
    }
  }
}

void blend_lines(const KernelCall& call, int64_t stride) {
  const auto& p = *static_cast<const Params*>(call.params);
  auto* line = static_cast<float*>(call.scratch);
  for_each_row<float>(
      call, [&](int64_t image, const Taps<float>& d, const Taps<float>& h, int64_t y) {
        for (int64_t c = 0; c < p.channels; c += stride) {
          const int64_t count = std::min(stride, p.channels - c);
          with_float_type(p.x_dtype, [&]<typename T>(T) {
            const T* x = static_cast<const T*>(call.operands[0]) + image + c;
            blend_line(p, d, h, x, count, line, stride);
          });
          with_float_type(p.y_dtype, [&]<typename T>(T) {
            blend_columns(p, line, stride, count, static_cast<T*>(call.operands[1]) + y + c);
          });
        }
      });
}

template <typename T, typename Real>
void pick(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  for_each_position<Real>(call, [&](const Stencil<Real>& stencil, int64_t at) {
    move_channels(p, static_cast<const T*>(call.operands[0]) + stencil.offset[0],
                  static_cast<T*>(call.operands[1]) + at);
  });
}

template <typename T>
void blend(const KernelCall& call) {
  using Real = decltype(to_real(T{}));
  const auto& p = *static_cast<const Params*>(call.params);
  const T* x = static_cast<const T*>(call.operands[0]);
  const bool vectors = (p.x_strides[1] == 1 && p.y_strides[1] == 1) || p.channels == 1;
  for_each_position<Real>(call, [&](const Stencil<Real>& stencil, int64_t at) {
    if constexpr (std::is_same_v<Real, float>) {
      if (vectors && p.channels > 1) return blend_vectors(p, stencil, x, call.operands[1], at);
    }
    blend_scalars(p, stencil, x, call.operands[1], at);
  });
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  if (const int64_t channels = line_channels(p); channels > 0) {
    blend_lines(call, channels);
  } else if (!is_nearest(p)) {
    with_real_type(p.x_dtype, [&](auto type) { blend<decltype(type)>(call); });
  } else if (p.x_dtype == kFloat64) {
    pick<double, double>(call);
  } else {
    with_type(p.x_dtype, [&](auto type) { pick<decltype(type), float>(call); });
  }
}

int64_t tasks(const void* params, int64_t) {
  return Rows(*static_cast<const Params*>(params)).tasks();
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return line_channels(p) * p.in_size[2] * int64_t{sizeof(float)};
}

const char* check_fields(const Params& p) {
  if (p.mode < 0 || p.mode >= kModes) return "there is no such interpolation";
  if (!is_flag(p.align_corners)) return "a flag is neither 0 nor 1";
  const bool same = p.x_dtype == p.y_dtype && element_size(p.x_dtype) > 0;
  const bool floats = is_float(p.x_dtype) && is_float(p.y_dtype);
  const bool doubles = p.x_dtype == kFloat64 && same;
  if (is_nearest(p) ? !same : !floats && !doubles) return "the dtypes do not fit the interpolation";
  if (p.mode == kCubic && (p.in_size[0] != 1 || p.out_size[0] != 1)) {
    return "a cubic interpolation has a depth";
  }
  for (int d = 0; d < 3; ++d) {
    if (p.in_size[d] < 1) return "an image is empty";
    const bool of_sizes = p.scale[d] == -1;
    if (!of_sizes && !(p.scale[d] >= 0 && p.scale[d] <= 1e12)) return "a scale is out of range";
  }
  return nullptr;
}

Region walk(const Params& p, const int64_t* size, const int64_t* strides) {
  return Region().dim(p.batch, strides[0]).dim(p.channels, strides[1]).dims(size, strides + 2, 3);
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  if (const char* why = check_fields(p)) return why;
  const Region x = walk(p, p.in_size, p.x_strides), y = walk(p, p.out_size, p.y_strides);
  if (const char* why = x.reads(c, 0, element_size(p.x_dtype))) return why;
  return y.writes(c, 1, element_size(p.y_dtype));
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  constexpr int64_t kTaps[] = {1, 8, 16, 1};
  return saturated({p.batch, p.channels, saturated(p.out_size, 3), kTaps[p.mode]});
}

}  // namespace

extern const KernelEntry resize_kernel;
const KernelEntry resize_kernel = {"resize", Params::kSchema, sizeof(Params), run,     check,
                                   tasks,    scratch,         nullptr,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
