// A vector of neighbouring outputs of several groups at a time: what its groups read of a pixel is
// at most a vector, too, of which each output gets its group's first channel, second, and so on,
// by a permutation. Taps outside the input are zeros. Each output's products are added tap by tap,
// and within one by channel. The instruction set with dot products of bfloat16 takes two channels
// at a time, which are neither widened nor permuted apart.
#include "kernels/cpu/conv_groups.h"

#include "kernels/cpu/conv_rows.h"
#include "kernels/cpu/depthwise_sums.h"
#include "kernels/cpu/igemm.h"
#include "kernels/cpu/scratch.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
bool spans_groups(const abi::ConvParams& p);
}
#endif

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ConvParams;

constexpr int64_t kSmall = int64_t{1} << 17;  // multiply-adds not worth a second worker
constexpr int64_t kTasks = 32;
constexpr bool kPermutes = kLanes >= 8;                             // by numbers from memory
constexpr int64_t kTerms = std::is_same_v<Element, float> ? 1 : 2;  // channels at once
constexpr int kTogether = kLanes >= 16 ? 8 : 4;  // outputs whose sums and pixels are registers

int64_t channels_of(const Params& p) {
  return p.in_channels / p.groups;
}
int64_t columns_of(const Params& p) {
  return p.out_channels / p.groups;
}
int64_t taps_of(const Params& p) {
  return p.kernel[0] * p.kernel[1] * p.kernel[2];
}

// Vectors of channels, and for each the lines of outputs.
struct Grid {
  int64_t vectors, lines, tasks;

  explicit Grid(const Params& p) {
    vectors = (p.out_channels + kLanes - 1) / kLanes;
    lines = p.batch * p.out_size[0] * p.out_size[1];
    const double work = static_cast<double>(lines) * static_cast<double>(p.out_size[2]) *
                        static_cast<double>(p.out_channels) *
                        static_cast<double>(taps_of(p) * channels_of(p));
    tasks = std::min(vectors * lines, work < kSmall ? 1 : kTasks);
  }
  int64_t begin(int64_t task) const {
    return tasks ? Split::even(vectors * lines, tasks, task) : 0;
  }
};

struct Scratch {
  int64_t *y_rows, *r_rows;
  float* sums;
  Element* w;
  int32_t* order;
  int64_t bytes;

  Scratch(const Params& p, void* base) {
    Arena arena(base);
    y_rows = arena.take<int64_t>(kTogether);
    r_rows = arena.take<int64_t>(kTogether);
    sums = arena.take<float>((kTogether + 1) * kLanes);
    w = arena.take<Element>(taps_of(p) * channels_of(p) * kLanes);
    order = arena.take<int32_t>(channels_of(p) * kLanes);
    bytes = arena.bytes();
  }
};

// A pixel's channels, each output's term of them, and its products added to sums.
#ifdef NPUSIM_BASE_ISA
inline BVec pixel_at(const bfloat16* x) {
  return load_pairs_part(x, kLanes);
}
inline BVec permuted(BVec v, const int32_t* order) {
  return (BVec)_mm512_maskz_permutexvar_epi32(0xFFFF, _mm512_load_si512(order), (__m512i)v);
}
inline Vec add_terms(Vec acc, BVec x, const bfloat16* w) {
  return dot_pairs(acc, x, load_pairs(w));
}
#else
template <typename X>
inline Vec pixel_at(const X* x) {
  return load(x);
}
[[maybe_unused]] inline Vec permuted(Vec v, [[maybe_unused]] const int32_t* order) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_permutexvar_ps(0xFFFF, _mm512_load_si512(order), (__m512)v);
#elif defined(__AVX2__)
  const __m256i lanes = _mm256_load_si256(reinterpret_cast<const __m256i*>(order));
  return (Vec)_mm256_permutevar8x32_ps((__m256)v, lanes);
#else
  return v;  // never called: no vector spans groups
#endif
}
[[maybe_unused]] inline Vec add_terms(Vec acc, Vec x, const float* w) {
  return acc + x * load(w);
}
#endif
using Pixel = decltype(pixel_at(static_cast<const Element*>(nullptr)));

class LineRunner {
 public:
  LineRunner(const Params& p, const KernelCall& call)
      : p_(p),
        s_(p, call.scratch),
        x_(call.operands[0]),
        packed_(call.operands[1]),
        out_(make_output(p, call.operands, p.out_channels)),
        channels_(channels_of(p)) {
    out_.y_rows = s_.y_rows;
    out_.r_rows = s_.r_rows;
    for (int d = 0; d < 3; ++d) {
      // A step beyond the input is never taken, and need not be representable.
      steps_[d] = std::clamp<int64_t>(p.in_size[d] - 1, 0, p.dilation[d]) * p.x_strides[2 + d];
    }
    const int64_t reach = p.in_size[2] - 1 + p.pad[2] - (p.kernel[2] - 1) * p.dilation[2];
    inner_ = p.pad[2] > 0 ? (p.pad[2] + p.stride[2] - 1) / p.stride[2] : 0;
    inner_ = std::min(inner_, p.out_size[2]);
    inner_end_ =
        std::clamp<int64_t>(reach < 0 ? 0 : reach / p.stride[2] + 1, inner_, p.out_size[2]);
  }

  // Turns to a vector of output channels. The last one may begin among those before, which it does
  // not store: they are another task's.
  void enter(int64_t vector) {
    if (vector == vector_) return;
    vector_ = vector;
    channel_ = std::min(vector * kLanes, p_.out_channels - kLanes);
    skip_ = vector * kLanes - channel_;
    const int64_t k = taps_of(p_) * channels_, columns = columns_of(p_);
    const int64_t first = channel_ / columns * channels_;
    read_ = std::min(first, p_.in_channels - kLanes);
    for (int64_t i = 0; i < channels_ / kTerms * kLanes; ++i) {
      const int64_t channel = first + i % kLanes / columns * channels_ + i / kLanes * kTerms;
      s_.order[i] = static_cast<int32_t>((channel - read_) / kTerms);
    }
    with_operand_type(p_.w_dtype, [&]<typename W>(W) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t group = (channel_ + lane) / columns, column = (channel_ + lane) % columns;
        const W* w = static_cast<const W*>(packed_) + group * k * kPanel + column;
        for (int64_t i = 0; i < k; ++i) {
          s_.w[(i / kTerms * kLanes + lane) * kTerms + i % kTerms] = as_element(w[i * kPanel]);
        }
      }
    });
  }

  template <typename X>
  void run(int64_t line) {
    const int64_t h = line % p_.out_size[1], plane = line / p_.out_size[1];
    const int64_t d = plane % p_.out_size[0], n = plane / p_.out_size[0];
    d_ = valid_taps(p_, 0, d);
    h_ = valid_taps(p_, 1, h);
    y_ = n * p_.y_strides[0] + d * p_.y_strides[2] + h * p_.y_strides[3];
    if (p_.residual) r_ = n * p_.r_strides[0] + d * p_.r_strides[2] + h * p_.r_strides[3];
    const X* x = static_cast<const X*>(x_) + read_;
    if (d_.begin < d_.end && h_.begin < h_.end) {
      x += n * p_.x_strides[0] + d_.at * p_.x_strides[2] + h_.at * p_.x_strides[3];
    }
    int64_t w = 0;
    for (; w < inner_; ++w) border(x, w);
    for (; w + kTogether <= inner_end_; w += kTogether) inner<kTogether>(x, w);
    for (; w < inner_end_; ++w) inner<1>(x, w);
    for (; w < p_.out_size[2]; ++w) border(x, w);
  }

 private:
  template <int N, typename X>
  void inner(const X* x, int64_t w) {
    const X* at[N];
    for (int i = 0; i < N; ++i) at[i] = x + ((w + i) * p_.stride[2] - p_.pad[2]) * p_.x_strides[4];
    compute<N>(at, {0, p_.kernel[2], 0}, w);
  }

  template <typename X>
  void border(const X* x, int64_t w) {
    const Taps taps = valid_taps(p_, 2, w);
    const X* const at[1] = {taps.begin < taps.end ? x + taps.at * p_.x_strides[4] : x};
    compute<1>(at, taps, w);
  }

  template <int N, typename X>
  [[gnu::noinline]] void compute(const X* const (&at)[N], const Taps& taps, int64_t w) {
    Vec acc[N][1] = {};
    const Element* weight = s_.w;
    for (int64_t i = 0; i < p_.kernel[0]; ++i) {
      for (int64_t j = 0; j < p_.kernel[1]; ++j) {
        const bool line = i >= d_.begin && i < d_.end && j >= h_.begin && j < h_.end;
        const int64_t from = (i - d_.begin) * steps_[0] + (j - h_.begin) * steps_[1];
        for (int64_t k = 0; k < p_.kernel[2]; ++k) {
          const bool inside = line && k >= taps.begin && k < taps.end;
          const int64_t offset = inside ? from + (k - taps.begin) * steps_[2] : 0;
          Pixel x[N];
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) x[n] = inside ? pixel_at(at[n] + offset) : Pixel{};
          const int32_t* order = s_.order;
          for (int64_t c = 0; c < channels_; c += kTerms) {
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
              acc[n][0] = add_terms(acc[n][0], permuted(x[n], order), weight);
            }
            order += kLanes;
            weight += kLanes * kTerms;
          }
        }
      }
    }
    for (int n = 0; n < N; ++n) {
      s_.y_rows[n] = y_ + (w + n) * p_.y_strides[4];
      if (p_.residual) s_.r_rows[n] = r_ + (w + n) * p_.r_strides[4];
    }
    if (skip_ == 0 && finishes_in_registers(out_)) {
      finish_tile<N, 1>(acc, linear_output(out_, 0, channel_));
      if (!has_range(out_)) activate_rows(out_, 0, N, channel_, kLanes);
      return;
    }
    for (int n = 0; n < N; ++n) store(s_.sums + n * kLanes, acc[n][0]);
    finish(out_, 0, N, channel_ + skip_, kLanes - skip_, s_.sums + skip_, kLanes);
  }

  const Params& p_;
  const Scratch s_;
  const void* x_;
  const void* packed_;
  Output out_;
  int64_t channels_;  // of a group
  int64_t steps_[3];
  int64_t vector_ = -1;
  int64_t channel_ = 0, skip_ = 0, read_ = 0;  // computed from, not stored, read from
  Taps d_{}, h_{};
  int64_t inner_, inner_end_;
  int64_t y_ = 0, r_ = 0;
};

template <typename X>
void run_lines(const Params& p, const KernelCall& call) {
  const Grid grid(p);
  LineRunner runner(p, call);
  for (int64_t i = grid.begin(call.begin); i < grid.begin(call.end); ++i) {
    runner.enter(i / grid.lines);
    runner.template run<X>(i % grid.lines);
  }
}

}  // namespace

#ifdef NPUSIM_BASE_ISA
bool spans_groups(const Params& p) {
  return p.x_dtype == kElement && p.w_dtype == kElement && channels_of(p) % kTerms == 0 &&
         NPUSIM_BASE_ISA::spans_groups(p);
}
#else
bool spans_groups(const Params& p) {
  if (!kPermutes || p.transposed || p.x_strides[1] != 1 || p.groups < 2) return false;
  if (p.x_dtype == static_cast<int32_t>(abi::DType::kFloat16)) return false;
  const int64_t columns = columns_of(p);
  if (columns < 1 || columns >= kPanel || kLanes % columns != 0) return false;
  if (channels_of(p) > columns || channels_of(p) < 1) return false;
  return p.out_channels >= kLanes && p.in_channels >= kLanes;
}
#endif

int64_t spanning_tasks(const Params& p) {
  return Grid(p).tasks;
}

int64_t spanning_scratch(const Params& p) {
  return Scratch(p, nullptr).bytes;
}

void run_spanning(const KernelCall& call) {
  if constexpr (kPermutes) {
    const auto& p = *static_cast<const Params*>(call.params);
#ifdef NPUSIM_BASE_ISA
    run_lines<bfloat16>(p, call);
#else
    p.x_dtype == static_cast<int32_t>(abi::DType::kFloat32) ? run_lines<float>(p, call)
                                                            : run_lines<bfloat16>(p, call);
#endif
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
