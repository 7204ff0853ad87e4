// Convolution of one to three dimensions, grouped, dilated or transposed, as an indirect GEMM:
// rows are output positions, K runs over taps and channels. The input is read in place through
// pointers, or through a strip (conv_strip.h) where that is not possible or not worth it. What
// Winograd's algorithm computes faster of 16-bit weights is conv_winograd.h's, what has few
// channels in a group conv_groups.h's; sums of few channels out are conv_dots.h's.
#include "kernels/cpu/conv_dots.h"
#include "kernels/cpu/conv_groups.h"
#include "kernels/cpu/conv_strip.h"
#include "kernels/cpu/conv_winograd.h"
#include "kernels/cpu/scratch.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
extern const KernelEntry conv_kernel;
bool spans_groups(const abi::ConvParams& p);
}  // namespace npusim::cpu::NPUSIM_BASE_ISA
#endif

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ConvParams;

#ifdef NPUSIM_BASE_ISA
// All that this set adds are dot products of bfloat16; others are the set's below.
constexpr const KernelEntry& kBase = NPUSIM_BASE_ISA::conv_kernel;
bool is_of_base(const Params& p) {
  if (p.x_dtype != kElement || p.w_dtype != kElement) return true;
  return NPUSIM_BASE_ISA::spans_groups(p) && !spans_groups(p);
}
#endif

constexpr int64_t kRowBlock = 120;            // positions that share a pass over a group of B
constexpr int64_t kStripRows = 512;           // positions that share a strip
constexpr int64_t kStripBlocks = 6;           // strips that keep all workers busy
constexpr int64_t kStripElements = 96 << 10;  // a strip that stays in the near caches
constexpr int64_t kShortRun = 8;              // channels that make a poor run

// Everything that follows from the parameters alone.
struct Plan {
  const Params& p;
  int64_t channels, columns;  // of a group
  int64_t k;                  // of B
  int64_t phases[3];
  int64_t outputs[3];  // of the largest phase
  bool strip, merged;  // a strip; its kernel rows are single runs
  bool dots;           // dot products in place of tiles
  int64_t tile[3];     // outputs of a strip's block; direct blocks run over all dimensions
  int64_t blocks;      // of a phase
  int64_t rows;        // most positions of a block

  explicit Plan(const Params& p);
  int64_t taps() const { return p.kernel[0] * p.kernel[1] * (merged ? 1 : p.kernel[2]); }
  int64_t run() const { return channels * (merged ? p.kernel[2] : 1); }
  int64_t phase_count() const { return phases[0] * phases[1] * phases[2]; }
  int64_t strip_extent(int d, int64_t outputs) const {
    if (p.kernel[d] == 1) return outputs;
    return (outputs - 1) * (p.transposed ? 1 : p.stride[d]) + (p.kernel[d] - 1) * p.dilation[d] + 1;
  }
  // Elements of the largest strip; -1 when that leaves int64.
  int64_t strip_elements() const {
    if (!strip) return 0;
    const int64_t sizes[] = {strip_extent(0, tile[0]), strip_extent(1, tile[1]),
                             strip_extent(2, tile[2]), channels};
    return product(sizes, 4);
  }
  TaskGrid grid() const {
    const int64_t rows = p.batch * p.out_size[0] * p.out_size[1] * p.out_size[2] * p.groups;
    return {p.groups * phase_count() * blocks, rows, columns, k, strip};
  }

 private:
  void choose_tile();
};

Plan::Plan(const Params& p) : p(p) {
  channels = p.in_channels / p.groups;
  columns = p.out_channels / p.groups;
  k = p.kernel[0] * p.kernel[1] * p.kernel[2] * channels;
  for (int d = 0; d < 3; ++d) {
    phases[d] = axis_phases(p, d);
    outputs[d] = (p.out_size[d] + phases[d] - 1) / phases[d];
  }
  strip = p.x_dtype != kElement || p.x_strides[1] != 1 || (channels < kShortRun && p.kernel[2] > 1);
  merged = strip && !p.transposed && p.dilation[2] == 1;
  dots = takes_dots(columns, std::max<int64_t>(1, taps() / phase_count()), run());
  const int64_t positions = p.batch * outputs[0] * outputs[1] * outputs[2];
  if (strip) {
    choose_tile();
  } else {
    rows = Split(positions, kRowBlock).largest();
    blocks = Split(positions, kRowBlock).parts;
  }
}

// Whole lines of outputs where they fit, so that neighbouring kernel rows are copied once.
void Plan::choose_tile() {
  const int64_t plane = outputs[1] * outputs[2];
  const int64_t wanted =
      std::clamp<int64_t>(p.batch * outputs[0] * plane / kStripBlocks, 32, kStripRows);
  tile[0] = 1;
  tile[1] = 1;
  tile[2] = std::min(outputs[2], wanted);
  const auto fits = [&] {
    const int64_t floats = strip_elements();
    return floats >= 0 && floats <= kStripElements;
  };
  while (tile[2] > 8 && !fits()) tile[2] = (tile[2] + 1) / 2;
  while (tile[2] == outputs[2] && tile[1] < outputs[1] && (tile[1] + 1) * tile[2] <= wanted) {
    ++tile[1];
    if (fits()) continue;
    --tile[1];
    break;
  }
  rows = tile[1] * tile[2];
  blocks = p.batch * outputs[0] * Split(outputs[1], std::max<int64_t>(tile[1], 1)).parts *
           Split(outputs[2], std::max<int64_t>(tile[2], 1)).parts;
}

// A worker's scratch.
struct Scratch {
  const Element** at;
  int64_t *tap_k, *widened_k, *y_rows, *r_rows, *axes;
  float* sums;
  Element *widened, *zeros, *strip, *columns;
  int64_t bytes;

  Scratch(const Plan& plan, void* base) {
    Arena arena(base);
    const Params& p = plan.p;
    at = arena.take<const Element*>(plan.taps() * plan.rows);
    tap_k = arena.take<int64_t>(plan.taps());
    widened_k = arena.take<int64_t>(plan.taps());
    y_rows = arena.take<int64_t>(plan.rows);
    r_rows = arena.take<int64_t>(plan.rows);
    axes = arena.take<int64_t>(2 * (p.kernel[0] + p.kernel[1] + p.kernel[2]));
    sums = arena.take<float>(plan.dots ? dot_sums(plan.columns, plan.rows)
                                       : sums_floats(plan.rows, plan.taps(), plan.run()));
    widened = arena.take<Element>(widened_elements(p.w_dtype, plan.taps(), plan.run()));
    zeros = arena.take<Element>(plan.channels);
    strip = arena.take<Element>(plan.strip_elements());
    columns =
        arena.take<Element>(plan.dots ? dot_elements(plan.columns, plan.taps(), plan.run()) : 0);
    bytes = arena.bytes();
  }
};

// The row block that a worker is in: which group, which positions, and its tables in scratch.
class RowBlock {
 public:
  RowBlock(const Plan& plan, const KernelCall& call)
      : plan_(plan),
        p_(plan.p),
        s_(plan, call.scratch),
        x_(call.operands[0]),
        out_(make_output(plan.p, call.operands, plan.columns)),
        bias_(out_.bias) {
    out_.y_rows = s_.y_rows;
    out_.r_rows = s_.r_rows;
    if (!plan.strip) std::fill_n(s_.zeros, plan.channels, Element{});
  }

  void enter(int64_t index) {
    if (index == index_) return;
    index_ = index;
    block_ = index % plan_.blocks;
    const int64_t phase = index / plan_.blocks % plan_.phase_count();
    group_ = index / plan_.blocks / plan_.phase_count();
    make_axes(phase);
    const Positions from = plan_.strip ? strip_positions() : direct_positions();
    rows_ = {.at = s_.at,
             .stride = from.count,
             .count = from.count,
             .run = plan_.run(),
             .tap_k = s_.tap_k,
             .zeros = plan_.strip ? nullptr : s_.zeros};
    if (from.count == 0) return;
    const int64_t start = group_ * plan_.columns;
    out_.bias = bias_ ? bias_ + start : nullptr;
    offsets_of(axes_, p_.y_strides, from, s_.y_rows, start);
    if (p_.residual) offsets_of(axes_, p_.r_strides, from, s_.r_rows, start);
    list_taps();
    plan_.strip ? point_into_strip(from) : point_into_x(from);
    rows_.taps = axes_[0].taps * axes_[1].taps * axes_[2].taps;
  }

  void multiply(const void* w, int64_t first, int64_t end) {
    if (rows_.count == 0) return;
    const int64_t panels = (plan_.columns + kPanel - 1) / kPanel;
    const int64_t at = group_ * panels * plan_.k * kPanel * element_size(p_.w_dtype);
    const Panels b{static_cast<const char*>(w) + at, plan_.k, p_.w_dtype, s_.widened, s_.widened_k};
    if (!plan_.dots) return multiply_rows(rows_, b, first, end, out_, s_.sums);
    if (const int64_t weights = index_ / plan_.blocks; unpacked_ != weights) {
      unpack_columns(rows_, b, plan_.columns, s_.columns);
      unpacked_ = weights;
    }
    multiply_by_dots(rows_, s_.columns, plan_.columns, out_, s_.sums);
  }

 private:
  void make_axes(int64_t phase) {
    int64_t* storage = s_.axes;
    for (int d = 2; d >= 0; --d) {
      axes_[d] = make_axis(p_, d, phase % plan_.phases[d], storage, storage + p_.kernel[d]);
      storage += 2 * p_.kernel[d];
      phase /= plan_.phases[d];
    }
  }

  Positions direct_positions() const {
    const int64_t d = axes_[0].outputs, h = axes_[1].outputs, w = axes_[2].outputs;
    const int64_t total = p_.batch * d * h * w;
    const int64_t begin = Split::even(total, plan_.blocks, block_);
    const int64_t count = Split::even(total, plan_.blocks, block_ + 1) - begin;
    if (count == 0) return {};
    return {begin / w / h / d, begin / w / h % d, begin / w % h, begin % w, 0, h, 0, w, d, count};
  }

  Positions strip_positions() const {
    const int64_t d = axes_[0].outputs, h = axes_[1].outputs, w = axes_[2].outputs;
    const Split lines(plan_.outputs[1], plan_.tile[1]), pixels(plan_.outputs[2], plan_.tile[2]);
    const int64_t j = block_ / pixels.parts % lines.parts, k = block_ % pixels.parts;
    const int64_t plane = block_ / pixels.parts / lines.parts;
    const int64_t z = plane % plan_.outputs[0], n = plane / plan_.outputs[0];
    const int64_t h_begin = lines.begin(j), h_end = std::min(h, lines.begin(j + 1));
    const int64_t w_begin = pixels.begin(k), w_end = std::min(w, pixels.begin(k + 1));
    if (z >= d || h_begin >= h_end || w_begin >= w_end) return {};
    const int64_t count = (h_end - h_begin) * (w_end - w_begin);
    return {n, z, h_begin, w_begin, h_begin, h_end, w_begin, w_end, z + 1, count};
  }

  // Where each tap's products begin along K.
  void list_taps() {
    int64_t* to = s_.tap_k;
    const Axis &d = axes_[0], &h = axes_[1], &w = axes_[2];
    const int64_t w_taps = plan_.merged ? 1 : w.taps;
    for (int64_t i = 0; i < d.taps; ++i) {
      for (int64_t j = 0; j < h.taps; ++j) {
        for (int64_t k = 0; k < w_taps; ++k) {
          const int64_t line = d.tap[i] * p_.kernel[1] + h.tap[j];
          *to++ = (line * p_.kernel[2] + w.tap[k]) * plan_.channels;
        }
      }
    }
  }

  void point_into_x(const Positions& from) {
    const Pixels<Element> x{static_cast<const Element*>(x_) + group_ * plan_.channels,
                            p_.x_strides[0],
                            p_.x_strides[2],
                            p_.x_strides[3],
                            p_.x_strides[4],
                            s_.zeros};
    point_at_taps(x, axes_, from, s_.at, from.count);
  }

  void point_into_strip(const Positions& from) {
    Strip strip{};
    strip.channels = plan_.channels;
    place_strip(strip, 0, axes_[0], from.d, 1);
    place_strip(strip, 1, axes_[1], from.h_begin, from.h_end - from.h_begin);
    place_strip(strip, 2, axes_[2], from.w_begin, from.w_end - from.w_begin);
    if (plan_.merged) axes_[2].taps = 1;
    with_operand_type(p_.x_dtype, [&]<typename X>(X) {
      const X* x = static_cast<const X*>(x_) + from.n * p_.x_strides[0] +
                   group_ * plan_.channels * p_.x_strides[1];
      if (strip.elements()) fill_strip(strip, x, p_.in_size, p_.x_strides, s_.strip);
    });
    const Pixels<Element> pixels{
        s_.strip, 0, strip.extent[1] * strip.line(), strip.line(), strip.channels, nullptr};
    point_at_taps(pixels, axes_, from, s_.at, from.count);
  }

  const Plan& plan_;
  const Params& p_;
  const Scratch s_;
  const void* x_;
  Output out_;
  const float* bias_;
  int64_t index_ = -1, block_ = 0, group_ = 0;
  int64_t unpacked_ = -1;  // the group and phase whose weights lie as columns
  Axis axes_[3];
  Rows rows_;
};

int64_t tasks(const void* params, [[maybe_unused]] int64_t workers) {
  const auto& p = *static_cast<const Params*>(params);
#ifdef NPUSIM_BASE_ISA
  if (is_of_base(p)) return kBase.tasks(params, workers);
#else
  if (transforms_stored(p)) return stored_winograd_tasks(p);
#endif
  if (spans_groups(p)) return spanning_tasks(p);
  return Plan(p).grid().count();
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
#ifdef NPUSIM_BASE_ISA
  if (is_of_base(p)) return kBase.scratch(params);
#else
  if (transforms_stored(p)) return stored_winograd_scratch(p);
#endif
  if (spans_groups(p)) return spanning_scratch(p);
  return Scratch(Plan(p), nullptr).bytes;
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
#ifdef NPUSIM_BASE_ISA
  if (is_of_base(p)) return kBase.run(call);
#else
  if (transforms_stored(p)) return run_stored_winograd(call);
#endif
  if (spans_groups(p)) return run_spanning(call);
  const Plan plan(p);
  RowBlock block(plan, call);
  plan.grid().for_each(call.begin, call.end, [&](int64_t index, int64_t first, int64_t end) {
    block.enter(index);
    block.multiply(call.operands[1], first, end);
  });
}

#ifdef NPUSIM_BASE_ISA
[[gnu::cold]] const char* check(const KernelCheck& c) {
  return kBase.check(c);
}
#else
[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_window(p)) return why;
  if (!is_flag(p.transposed)) return "transposed is neither 0 nor 1";
  if (p.groups < 1 || p.in_channels % p.groups || p.out_channels % p.groups)
    return "the groups do not divide the channels";
  if (const char* why = check_epilogue(c, p, p.out_channels, output_region(p, p.y_strides),
                                       output_region(p, p.r_strides)))
    return why;
  if (!is_float(p.x_dtype)) return "the input is not a float of 32 or 16 bits";
  if (const char* why = input_region(p).reads(c, 0, element_size(p.x_dtype))) return why;
  const int64_t k[] = {p.kernel[0], p.kernel[1], p.kernel[2], p.in_channels / p.groups};
  if (const char* why =
          check_panels(c, 1, p.groups, p.out_channels / p.groups, product(k, 4), p.w_dtype))
    return why;
  return Plan(p).strip_elements() < 0 ? "the window reaches too far" : nullptr;
}
#endif

int in_place(const void* params, int read) {
  const auto& p = *static_cast<const Params*>(params);
  return in_place_of_residual(p, read);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  const int64_t outputs = saturated({p.batch, p.out_channels, saturated(p.out_size, 3)});
  return saturated({outputs, saturated(p.kernel, 3), p.in_channels / p.groups});
}

}  // namespace

extern const KernelEntry conv_kernel;
const KernelEntry conv_kernel = {"conv", Params::kSchema, sizeof(Params), run,      check,
                                 tasks,  scratch,         nullptr,        in_place, work};

}  // namespace npusim::cpu::NPUSIM_ISA
