// Depthwise convolution of one to three dimensions, channels last: a vector of channels at a time,
// several neighbouring outputs in registers. Taps outside the input are skipped, not multiplied by
// zero: a line's valid depths and heights are clipped once, its border columns one by one. Kernels
// of the usual widths read a column once for all the outputs that it belongs to.
#include "kernels/cpu/conv_rows.h"
#include "kernels/cpu/depthwise_sums.h"
#include "kernels/cpu/scratch.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ConvDepthwiseParams;

constexpr int64_t kSmall = int64_t{1} << 17;  // multiply-adds not worth a second worker
constexpr int64_t kTasks = 32;

int64_t taps_of(const Params& p) {
  return p.kernel[0] * p.kernel[1] * p.kernel[2];
}

// Whether columns of X are read once for all outputs: of bfloat16 where registers are few, so that
// sums of pairs would be of half as many outputs.
template <typename X>
constexpr bool kReadsRows =
    std::is_same_v<X, float> || (kLanes >= 8 && std::is_same_v<X, bfloat16>);

bool reads_pairs(const Params& p) {
  return !kReadsRows<bfloat16> && p.x_dtype == static_cast<int32_t>(abi::DType::kBfloat16) &&
         p.w_dtype == p.x_dtype;
}
// Channels that no cut takes apart.
int64_t unit_of(const Params& p) {
  return reads_pairs(p) ? kPairChannels : kLanes;
}

// Output lines, cut further by channels where lines are few.
struct Grid {
  int64_t lines, units, cuts, cells;
  bool serial;

  explicit Grid(const Params& p) {
    lines = p.batch * p.out_size[0] * p.out_size[1];
    units = (p.out_channels + unit_of(p) - 1) / unit_of(p);
    cuts = std::clamp<int64_t>(kTasks / 2 / std::max<int64_t>(lines, 1), 1, units);
    cells = lines * cuts;
    const double work = static_cast<double>(lines) * static_cast<double>(p.out_size[2]) *
                        static_cast<double>(p.out_channels) * static_cast<double>(taps_of(p));
    serial = work < kSmall;
  }
  int64_t count() const { return std::min(cells, serial ? 1 : kTasks); }
  int64_t begin(int64_t task) const { return count() ? Split::even(cells, count(), task) : 0; }
};

struct Scratch {
  int64_t *y_rows, *r_rows;
  float *sums, *w;
  int64_t bytes;

  Scratch(const Params& p, void* base) {
    Arena arena(base);
    y_rows = arena.take<int64_t>(kOutputs);
    r_rows = arena.take<int64_t>(kOutputs);
    sums = arena.take<float>((kOutputs + 1) * kLanes);
    w = arena.take<float>(p.w_dtype == 0 ? 0 : taps_of(p) * p.out_channels);
    bytes = arena.bytes();
  }
};

// Bias and a range alone, for `count` outputs of kLanes channels.
template <typename Y>
[[gnu::noinline]] void finish_outputs(const Output& out, const Vec* acc, int count,
                                      int64_t column) {
  const auto [low, high] = range_of(out);
  const Vec bias = out.bias ? load(out.bias + column) : Vec{};
  for (int i = 0; i < count; ++i) {
    const Vec v = out.bias ? acc[i] + bias : acc[i];
    store(static_cast<Y*>(out.y) + out.y_rows[i] + column,
          clamp(v, broadcast(low), broadcast(high)));
  }
}

class LineRunner {
 public:
  LineRunner(const Params& p, const KernelCall& call)
      : p_(p),
        s_(p, call.scratch),
        x_(call.operands[0]),
        out_(make_output(p, call.operands, p.out_channels)) {
    out_.y_rows = s_.y_rows;
    out_.r_rows = s_.r_rows;
    registers_ = is_plain(out_);
    activates_ = !has_range(out_);
    narrow_ = out_.y_dtype != 0 && out_.residual_mode == kNoResidual && out_.more == 0;
    plain_ = has_range(out_) && out_.residual_mode == kNoResidual && out_.more == 0;
    pairs_ = reads_pairs(p);
    line_.kernel_h = p.kernel[1];
    line_.kernel_w = p.kernel[2];
    line_.channels = p.out_channels;
    line_.w = static_cast<const float*>(call.operands[1]);
    for (int d = 0; d < 3; ++d) {
      // A step beyond the input is never taken, and need not be representable.
      const int64_t step = std::clamp<int64_t>(p.in_size[d] - 1, 0, p.dilation[d]);
      line_.steps[d] = step * p.x_strides[2 + d];
    }
    with_float_type(p.w_dtype, [&]<typename W>(W) {
      if constexpr (!std::is_same_v<W, float>) {
        const W* w = static_cast<const W*>(call.operands[1]);
        line_.w = widen(w, s_.w, taps_of(p) * p.out_channels);
        if (pairs_) split_weights();
      }
    });
    // Outputs whose kernel columns all lie inside.
    const int64_t reach = p.in_size[2] - 1 + p.pad[2] - (p.kernel[2] - 1) * p.dilation[2];
    inner_ = p.pad[2] > 0 ? (p.pad[2] + p.stride[2] - 1) / p.stride[2] : 0;
    inner_ = std::min(inner_, p.out_size[2]);
    inner_end_ =
        std::clamp<int64_t>(reach < 0 ? 0 : reach / p.stride[2] + 1, inner_, p.out_size[2]);
    with_float_type(p.x_dtype, [&]<typename X>(X) {
      if constexpr (kReadsRows<X>) {
        if (is_usual()) pick_rows<X>();
      }
    });
  }

  // Channels [channel, channel_end) of line `line`.
  template <typename X>
  void run(int64_t line, int64_t channel, int64_t channel_end) {
    const int64_t h = line % p_.out_size[1], plane = line / p_.out_size[1];
    const int64_t d = plane % p_.out_size[0], n = plane / p_.out_size[0];
    line_.d = valid_taps(p_, 0, d);
    line_.h = valid_taps(p_, 1, h);
    y_ = n * p_.y_strides[0] + d * p_.y_strides[2] + h * p_.y_strides[3];
    if (p_.residual) r_ = n * p_.r_strides[0] + d * p_.r_strides[2] + h * p_.r_strides[3];
    const bool any = line_.d.begin < line_.d.end && line_.h.begin < line_.h.end;
    const X* x = static_cast<const X*>(x_);
    if (any) {
      x += n * p_.x_strides[0] + line_.d.at * p_.x_strides[2] + line_.h.at * p_.x_strides[3];
    }
    if constexpr (kReadsRows<X>) {
      if (inner_row_ != nullptr) channel = run_rows(x, channel, channel_end);
      if (channel == channel_end) return;
    }
    int64_t w = 0;
    for (; w < inner_; ++w) border(x, w, channel, channel_end);
    if constexpr (!std::is_same_v<X, float16>) {  // which are too few to have forms of their own
      for (; w + 8 <= inner_end_; w += 8) inner<8>(x, w, channel, channel_end);
      if (w + 4 <= inner_end_) w = inner<4>(x, w, channel, channel_end);
    }
    for (; w < inner_end_; ++w) inner<1>(x, w, channel, channel_end);
    for (; w < p_.out_size[2]; ++w) border(x, w, channel, channel_end);
  }

 private:
  using Row = void (LineRunner::*)(const void*, int64_t, int64_t, int64_t);

  // Whether columns are neighbours, and no output lies far outside the image.
  bool is_usual() const {
    const int64_t last = (p_.out_size[2] - 1) * p_.stride[2] - p_.pad[2];
    for (int64_t size : p_.in_size) {
      if (size < 1) return false;
    }
    return p_.in_size[2] > 1 && p_.dilation[2] == 1 && p_.pad[2] >= 0 && p_.pad[2] < p_.kernel[2] &&
           last < p_.in_size[2];
  }

  template <typename X>
  void pick_rows() {
    const auto pick = [&]<int W, int S>() {
      if (p_.kernel[2] != W || p_.stride[2] != S) return;
      // Of short lines with steps nearly all tiles are edges, which look at each column.
      if (S > 1 && p_.out_size[2] < 3 * kOutputs) return;
      inner_row_ = &LineRunner::compute_row<W, S, false, X>;
      edge_row_ = &LineRunner::compute_row<W, S, true, X>;
    };
    pick.template operator()<3, 1>();
    pick.template operator()<3, 2>();
    pick.template operator()<5, 1>();
    pick.template operator()<7, 1>();
  }

  // All outputs of the line, of as many channels as rows are read of; returns where these end. What
  // no vector is full of is read in part, or once more with some channels before it, where that
  // changes nothing that is read.
  int64_t run_rows(const void* x, int64_t channel, int64_t channel_end) {
    const int64_t whole = channel_end - (channel_end - channel) % kLanes;
    for (int64_t w = 0; channel < whole && w < p_.out_size[2]; w += kOutputs) {
      const bool inner = w >= inner_ && w + kOutputs <= inner_end_;
      (this->*(inner ? inner_row_ : edge_row_))(x, w, channel, whole);
    }
    if (whole == channel_end) return whole;
    const bool again = whole > channel && !p_.residual;
    if (!again && !kReadsParts) return whole;
    if (again) return run_rows(x, channel_end - kLanes, channel_end);
    for (int64_t w = 0; w < p_.out_size[2]; w += kOutputs) {
      (this->*edge_row_)(x, w, whole, channel_end);
    }
    return channel_end;
  }

  // kOutputs outputs from `w` on, or what the line has of them.
  template <int W, int S, bool Edge, typename X>
  [[gnu::noinline]] void compute_row(const void* x, int64_t w, int64_t channel,
                                     int64_t channel_end) {
    const int64_t first = w * S - p_.pad[2];
    const Columns columns{first * p_.x_strides[4], -first, p_.in_size[2] - first};
    const auto count = static_cast<int>(std::min<int64_t>(kOutputs, p_.out_size[2] - w));
    place_outputs(w, count);
    for (int64_t c = channel; c < channel_end; c += kLanes) {
      const int64_t part = std::min<int64_t>(kLanes, channel_end - c);
      Vec acc[kOutputs][1] = {};
      accumulate_row<W, S, Edge>(line_, static_cast<const X*>(x), columns, c, part, acc);
      if constexpr (W == 3 && !Edge &&
                    std::is_same_v<X, float>) {  // of so few taps, storing is a good part
        if (registers_) {
          finish_tile<kOutputs, 1>(acc, linear_output(out_, 0, c));
          continue;
        }
      }
#pragma GCC unroll 8
      for (int n = 0; n < kOutputs; ++n) store(s_.sums + n * kLanes, acc[n][0]);
      store_row(count, c, part);
    }
    const int64_t whole = (channel_end - channel) / kLanes * kLanes;
    if (registers_ && activates_ && whole > 0) activate_rows(out_, 0, count, channel, whole);
  }

  // The first `count` outputs of the sums of `part` channels, but for an activation of y where it
  // lies, if these are a whole vector.
  [[gnu::noinline]] void store_row(int count, int64_t channel, int64_t part) {
    if constexpr (kReadsRows<bfloat16>) {
      if (narrow_) return store_narrow(0, count, channel, part);
    }
    if (!registers_ || part < kLanes) {
      return finish(out_, 0, count, channel, part, s_.sums, kLanes);
    }
    LinearOutput out = linear_output(out_, 0, channel);
    if (count == kOutputs) {
      Vec all[kOutputs][1];
#pragma GCC unroll 8
      for (int n = 0; n < kOutputs; ++n) all[n][0] = load(s_.sums + n * kLanes);
      return finish_tile<kOutputs, 1>(all, out);
    }
    for (int n = 0; n < count; ++n) {
      const Vec one[1][1] = {{load(s_.sums + n * kLanes)}};
      finish_tile<1, 1>(one, out);
      ++out.y_rows;
      if (out.residual) ++out.r_rows;
    }
  }

  // The same in 16 bits, of outputs [first, first + count): all sums pass the activation at once.
  void store_narrow(int first, int count, int64_t channel, int64_t part = kLanes) {
    if (out_.bias) {
      const Vec bias = load_some(out_.bias + channel, part);
      for (int n = 0; n < count; ++n)
        store(s_.sums + n * kLanes, load(s_.sums + n * kLanes) + bias);
    }
    activate(out_, s_.sums, count * kLanes);
    with_float_type(out_.y_dtype, [&]<typename Y>(Y) {
      Y* y = static_cast<Y*>(out_.y) + channel;
      for (int n = 0; n < count; ++n) {
        const Vec v = load(s_.sums + n * kLanes);
        if (part < kLanes) {
          store_part(y + s_.y_rows[first + n], v, part);
        } else {
          store(y + s_.y_rows[first + n], v);
        }
      }
    });
  }

  void place_outputs(int64_t w, int count) {
    for (int i = 0; i < count; ++i) {
      s_.y_rows[i] = y_ + (w + i) * p_.y_strides[4];
      if (p_.residual) s_.r_rows[i] = r_ + (w + i) * p_.r_strides[4];
    }
  }

  // N outputs from `w` on whose kernel columns are all inside.
  template <int N, typename X>
  int64_t inner(const X* x, int64_t w, int64_t channel, int64_t channel_end) {
    const X* at[N];
    for (int i = 0; i < N; ++i) at[i] = x + ((w + i) * p_.stride[2] - p_.pad[2]) * p_.x_strides[4];
    compute<N>(at, {0, p_.kernel[2], 0}, w, channel, channel_end);
    return w + N;
  }

  // An output some of whose kernel columns are outside.
  template <typename X>
  void border(const X* x, int64_t w, int64_t channel, int64_t channel_end) {
    const Taps taps = valid_taps(p_, 2, w);
    const X* const at[1] = {taps.begin < taps.end ? x + taps.at * p_.x_strides[4] : x};
    compute<1>(at, taps, w, channel, channel_end);
  }

  // Channels run innermost: a pixel's are contiguous, and the pixels of a tile stay near.
  template <int N, typename X>
  void compute(const X* const (&at)[N], const Taps& taps, int64_t w, int64_t channel,
               int64_t channel_end) {
    place_outputs(w, N);
    int64_t c = channel;
    if constexpr (std::is_same_v<X, bfloat16> && !kReadsRows<X>) {
      for (; pairs_ && c + kPairChannels <= channel_end; c += kPairChannels) {
        compute_pairs<N>(at, taps, c);
      }
    }
    constexpr int V = vectors_of(N);
    for (; c + V * kLanes <= channel_end; c += V * kLanes) {
      Vec acc[N][V] = {};
      accumulate<N, V, false>(line_, at, taps.begin, taps.end, c, kLanes, acc);
      store_outputs<N, V, false>(acc, c, kLanes);
    }
    for (; c < channel_end; c += kLanes) {
      const int64_t part = std::min<int64_t>(kLanes, channel_end - c);
      Vec acc[N][1] = {};
      accumulate<N, 1, true>(line_, at, taps.begin, taps.end, c, part, acc);
      store_outputs<N, 1, true>(acc, c, part);
    }
  }

  void split_weights() {
    for (int64_t tap = 0; tap < taps_of(p_); ++tap) {
      float* w = s_.w + tap * p_.out_channels;
      for (int64_t c = 0; c + kPairChannels <= p_.out_channels; c += kPairChannels) {
        float split[kPairChannels];
        for (int i = 0; i < kPairChannels; ++i) split[i / 2 + i % 2 * kLanes] = w[c + i];
        std::copy_n(split, kPairChannels, w + c);
      }
    }
  }

  template <int N>
  void compute_pairs(const bfloat16* const (&at)[N], const Taps& taps, int64_t c) {
    constexpr int M = std::min(N, kPairOutputs);
    for (int n = 0; n < N; n += M) {
      Vec acc[2 * M];
      accumulate_pairs<M>(line_, at + n, taps.begin, taps.end, c, acc);
      for (int half = 0; half < 2; ++half) {
        store_some(acc + half * M, n, M, c + half * kLanes);
      }
    }
  }

  // Outputs [first, first + count) of the tile, kLanes channels of each.
  void store_some(const Vec* acc, int first, int count, int64_t channel) {
    if (plain_) {
      Output out = out_;
      out.y_rows += first;
      with_float_type(out_.y_dtype,
                      [&]<typename Y>(Y) { finish_outputs<Y>(out, acc, count, channel); });
      return;
    }
    for (int i = 0; i < count; ++i) store(s_.sums + i * kLanes, acc[i]);
    if (narrow_) return store_narrow(first, count, channel);
    finish(out_, first, count, channel, kLanes, s_.sums, kLanes);
  }

  // `columns` channels of each where Part, whole vectors elsewhere.
  template <int N, int V, bool Part>
  void store_outputs(const Vec (&acc)[N][V], int64_t channel, int64_t columns) {
    if (!Part && registers_) {
      finish_tile<N, V>(acc, linear_output(out_, 0, channel));
      if (activates_) activate_rows(out_, 0, N, channel, V * kLanes);
      return;
    }
    for (int i = 0; i < N; ++i) {
      for (int v = 0; v < V; ++v) store(s_.sums + (i * V + v) * kLanes, acc[i][v]);
    }
    finish(out_, 0, N, channel, Part ? columns : V * kLanes, s_.sums, V * kLanes);
  }

  const Params& p_;
  const Scratch s_;
  const void* x_;
  Output out_;
  Line line_{};
  bool registers_, activates_, plain_, pairs_, narrow_;
  Row inner_row_ = nullptr, edge_row_ = nullptr;  // none: other kernels go output by output
  int64_t inner_, inner_end_;
  int64_t y_ = 0, r_ = 0;
};

int64_t tasks(const void* params, int64_t) {
  return Grid(*static_cast<const Params*>(params)).count();
}

int64_t scratch(const void* params) {
  return Scratch(*static_cast<const Params*>(params), nullptr).bytes;
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Grid grid(p);
  LineRunner runner(p, call);
  with_float_type(p.x_dtype, [&]<typename X>(X) {
    for (int64_t i = grid.begin(call.begin); i < grid.begin(call.end); ++i) {
      const int64_t cut = i % grid.cuts;
      const int64_t channel = Split::even(grid.units, grid.cuts, cut) * unit_of(p);
      const int64_t end = Split::even(grid.units, grid.cuts, cut + 1) * unit_of(p);
      runner.template run<X>(i / grid.cuts, channel, std::min(end, p.out_channels));
    }
  });
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_window(p)) return why;
  if (p.in_channels != p.out_channels) return "a depthwise convolution changes its channel count";
  if (p.x_strides[1] != 1) return "the input's channels are not contiguous";
  if (const char* why = check_epilogue(c, p, p.out_channels, output_region(p, p.y_strides),
                                       output_region(p, p.r_strides)))
    return why;
  if (!is_float(p.x_dtype) || !is_float(p.w_dtype))
    return "a dtype is not a float of 32 or 16 bits";
  const int64_t w[] = {p.kernel[0], p.kernel[1], p.kernel[2], p.out_channels};
  if (const char* why = Region().dim(product(w, 4), 1).reads(c, 1, element_size(p.w_dtype)))
    return why;
  return input_region(p).reads(c, 0, element_size(p.x_dtype));
}

int in_place(const void* params, int read) {
  const auto& p = *static_cast<const Params*>(params);
  return in_place_of_residual(p, read);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  const int64_t outputs = saturated({p.batch, p.out_channels, saturated(p.out_size, 3)});
  return saturated({outputs, saturated(p.kernel, 3)});
}

}  // namespace

extern const KernelEntry conv_depthwise_kernel;
const KernelEntry conv_depthwise_kernel = {
    "conv_depthwise", Params::kSchema, sizeof(Params), run, check, tasks,
    scratch,          nullptr,         in_place,       work};

}  // namespace npusim::cpu::NPUSIM_ISA
