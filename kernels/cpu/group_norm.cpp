// Group norm of [batch, channels, spatial] with any strides, and an activation after it. Where
// channels are the contiguous dimension (channels-last), a task takes several groups and walks
// positions with all their channels side by side; elsewhere it takes one group, channel after
// channel. Values pass through a small tile, so every dtype, stride and activation is one code.
// y may be x's memory if dtypes and strides are equal.
#include "kernels/cpu/accumulate.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/scalar_ops.h"
#include "kernels/cpu/unary.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::GroupNormParams;

constexpr int64_t kTile = 512;       // elements converted at a time
constexpr int64_t kSideBySide = 64;  // channels of a channels-last task, about
constexpr int32_t kFloat64 = static_cast<int32_t>(abi::DType::kFloat64);

bool channels_last(const Params& p) {
  return p.x_strides[1] == 1 && p.x_strides[2] != 1 && p.channels > 1;
}

// Groups of one task, and tasks of one batch element.
struct Split {
  int64_t groups, tasks;
};
Split split_of(const Params& p) {
  const int64_t each = p.channels / p.groups;
  Split s{1, p.groups};
  if (channels_last(p) && each < kSideBySide) {
    s.groups = kSideBySide / each < p.groups ? kSideBySide / each : p.groups;
    s.tasks = (p.groups - 1) / s.groups + 1;
  }
  return s;
}

bool is_empty(const Params& p) {
  return p.batch == 0 || p.channels == 0 || p.spatial == 0 || p.groups == 0;
}

template <typename C>
void activate(int32_t act, C* values, int64_t n) {
  const auto op = static_cast<abi::Opcode>(act);
  if (op == abi::Opcode::kCopy) return;
  if constexpr (__is_same(C, float)) {
    apply_to_row(op, values, 1, values, (n + kLanes - 1) / kLanes * kLanes);
  } else {
    for (int64_t i = 0; i < n; ++i) values[i] = apply_unary(op, values[i]);
  }
}

// What a channel's elements go through: (x - center) * scale + shift; and sums of the elements, or
// of their distances from the center and the squares of these. Arrays over a task's channels.
template <typename C>
struct Channels {
  double *sums, *squares;
  C *center, *scale, *shift;
};

// One task: channels [first, first + count) of one batch element, whole groups.
template <typename C>
class GroupNormTask {
 public:
  GroupNormTask(const KernelCall& call, int64_t batch, int64_t first, int64_t count)
      : p_(*static_cast<const Params*>(call.params)), call_(call), first_(first), count_(count) {
    x_ = address(call.operands[0], p_.x_strides, batch, element_size(p_.x_dtype));
    y_ = address(call.operands[1 + p_.has_weight + p_.has_bias], p_.y_strides, batch,
                 element_size(p_.y_dtype));
    channel_.sums = static_cast<double*>(call.scratch);
    channel_.squares = channel_.sums + padded(count);
    channel_.center = reinterpret_cast<C*>(channel_.squares + padded(count));
    channel_.scale = channel_.center + padded(count);
    channel_.shift = channel_.scale + padded(count);
  }

  void run() {
    const int64_t each = p_.channels / p_.groups;
    const double n = static_cast<double>(each) * static_cast<double>(p_.spatial);
    sum_elements();
    for (int64_t c = 0; c < count_; c += each) {
      const double mean = sum(channel_.sums + c, each) / n;
      for (int64_t i = c; i < c + each; ++i) channel_.center[i] = static_cast<C>(mean);
    }
    sum_distances();
    for (int64_t c = 0; c < count_; c += each) {
      // How far rounding moved the center from the mean, and what that adds to the squares.
      const double gap = sum(channel_.sums + c, each) / n;
      const double variance = sum(channel_.squares + c, each) / n - gap * gap;
      const double scale = 1 / __builtin_sqrt((variance < 0 ? 0 : variance) + p_.eps);
      for (int64_t i = c; i < c + each; ++i) set_affine(i, scale, gap);
    }
    normalize();
  }

  static int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

 private:
  std::byte* address(void* operand, const int64_t* strides, int64_t batch, int64_t size) const {
    return static_cast<std::byte*>(operand) + (batch * strides[0] + first_ * strides[1]) * size;
  }

  static double sum(const double* values, int64_t n) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += values[i];
    return total;
  }

  void set_affine(int64_t c, double scale, double gap) {
    if (p_.has_weight) scale *= decode_one<double>(p_.w_dtype, call_.operands[1], first_ + c);
    double shift = -gap * scale;
    if (p_.has_bias)
      shift += decode_one<double>(p_.w_dtype, call_.operands[1 + p_.has_weight], first_ + c);
    channel_.scale[c] = static_cast<C>(scale);
    channel_.shift[c] = static_cast<C>(shift);
  }

  // Calls f(c, s, tile, n): channels c … c+n at position s (channels-last), or positions s … s+n
  // of channel c. The tile holds x there.
  template <typename F>
  void for_each_tile(F f) {
    C tile[kTile + kLanes];
    const int64_t size = element_size(p_.x_dtype);
    const bool last = channels_last(p_);
    const int64_t outer = last ? p_.spatial : count_, inner = last ? count_ : p_.spatial;
    const int64_t outer_stride = p_.x_strides[last ? 2 : 1], stride = p_.x_strides[last ? 1 : 2];
    for (int64_t i = 0; i < outer; ++i) {
      for (int64_t j = 0; j < inner; j += kTile) {
        const int64_t n = inner - j < kTile ? inner - j : kTile;
        decode_run(p_.x_dtype, x_ + (i * outer_stride + j * stride) * size, stride, n, tile);
        f(last ? j : i, last ? i : j, tile, n);
      }
    }
  }

  void sum_elements() {
    using V = typename Pack<C>::type;
    const bool last = channels_last(p_);
    for (int64_t c = 0; c < count_; ++c) channel_.sums[c] = 0;
    for_each_tile([&](int64_t c, int64_t, const C* tile, int64_t n) {
      if (last) {
        for (int64_t j = 0; j < n; ++j) channel_.sums[c + j] += static_cast<double>(tile[j]);
      } else {
        channel_.sums[c] += accumulate(tile, n, [](V v) { return v; });
      }
    });
  }

  void sum_distances() {
    const bool last = channels_last(p_);
    for (int64_t c = 0; c < count_; ++c) channel_.sums[c] = channel_.squares[c] = 0;
    for_each_tile([&](int64_t c, int64_t, const C* tile, int64_t n) {
      if (last) {
        for (int64_t j = 0; j < n; ++j) {
          const auto d = static_cast<double>(tile[j] - channel_.center[c + j]);
          channel_.sums[c + j] += d;
          channel_.squares[c + j] += d * d;
        }
      } else {
        const Distances d = accumulate_distances(tile, n, channel_.center[c]);
        channel_.sums[c] += d.sum;
        channel_.squares[c] += d.squares;
      }
    });
  }

  void normalize() {
    const bool last = channels_last(p_);
    const int64_t size = element_size(p_.y_dtype);
    const int64_t stride = p_.y_strides[last ? 1 : 2];
    for_each_tile([&](int64_t c, int64_t s, C* tile, int64_t n) {
      const C *center = channel_.center + c, *scale = channel_.scale + c,
              *shift = channel_.shift + c;
      if (last) {
        for (int64_t j = 0; j < n; ++j) tile[j] = (tile[j] - center[j]) * scale[j] + shift[j];
      } else {
        for (int64_t j = 0; j < n; ++j) tile[j] = (tile[j] - *center) * *scale + *shift;
      }
      activate(p_.act, tile, n);
      std::byte* to = y_ + (c * p_.y_strides[1] + s * p_.y_strides[2]) * size;
      encode_run(tile, 1, n, p_.y_dtype, to, stride);
    });
  }

  const Params& p_;
  const KernelCall& call_;
  const int64_t first_, count_;
  const std::byte* x_;
  std::byte* y_;
  Channels<C> channel_;
};

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  if (is_empty(p)) return;
  const Split split = split_of(p);
  const int64_t each = p.channels / p.groups;
  for (int64_t task = call.begin; task < call.end; ++task) {
    const int64_t group = task % split.tasks * split.groups;
    const int64_t left = p.groups - group, groups = left < split.groups ? left : split.groups;
    with_class(compute_class(p.x_dtype), [&](auto type) {
      using C = decltype(type);
      if constexpr (!__is_same(C, int64_t))
        GroupNormTask<C>(call, task / split.tasks, group * each, groups * each).run();
    });
  }
}

int64_t count_tasks(const void* params, int64_t) {
  const Params& p = *static_cast<const Params*>(params);
  return is_empty(p) ? 0 : p.batch * split_of(p).tasks;
}

int64_t scratch(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  if (is_empty(p)) return 0;
  const int64_t count = split_of(p).groups * (p.channels / p.groups);
  return GroupNormTask<double>::padded(count) * 5 * 8;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (!is_flag(p.has_weight) || !is_flag(p.has_bias)) return "a flag is not 0 or 1";
  const auto parameters = static_cast<size_t>(p.has_weight + p.has_bias);
  if (const char* why = operand_count(c, 2 + parameters)) return why;
  if (p.groups <= 0 || p.channels < 0 || p.channels % p.groups != 0)
    return "the groups do not divide the channels";
  const int32_t w_dtype = parameters ? p.w_dtype : p.x_dtype;
  const bool wide = p.x_dtype == kFloat64 && p.y_dtype == kFloat64 && w_dtype == kFloat64;
  if (!wide && !(is_float(p.x_dtype) && is_float(p.y_dtype) && is_float(w_dtype)))
    return "a dtype is not one that group_norm computes";
  if (!is_activation(p.act) || static_cast<abi::Opcode>(p.act) == abi::Opcode::kClamp)
    return "the activation is not a unary float opcode";
  const int64_t sizes[] = {p.batch, p.channels, p.spatial};
  if (const char* why = Region().dims(sizes, p.x_strides, 3).reads(c, 0, element_size(p.x_dtype)))
    return why;
  for (size_t i = 1; i <= parameters; ++i) {
    if (const char* why = Region().dim(p.channels, 1).reads(c, i, element_size(p.w_dtype)))
      return why;
  }
  return Region().dims(sizes, p.y_strides, 3).writes(c, 1 + parameters, element_size(p.y_dtype));
}

}  // namespace

extern const KernelEntry group_norm_kernel;
const KernelEntry group_norm_kernel = {"group_norm", Params::kSchema, sizeof(Params), run,
                                       check,        count_tasks,     scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
