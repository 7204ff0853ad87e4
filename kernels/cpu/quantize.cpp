// Quantizes the rows of a weight, once, at load (quantized.h has the layout). Scales of int4 are
// searched: for a few candidate ranges the codes are found, then the scale (and zero point) that
// minimises the squared error for these codes, and the best candidate is kept.
//
// Groups of int4 are handled kLanes at a time, one a lane, so that nothing needs a sum over lanes.
#include <algorithm>

#include "kernels/cpu/quantized.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/storage.h"
#include "kernels/cpu/transpose.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::QuantizeParams;

constexpr int64_t kTaskElements = int64_t{1} << 18;
constexpr int64_t kLongestGroup = 128;
// How far the ranges tried for a group reach, as a share of its largest element (symmetric) or of
// its whole range (asymmetric). Below 1 the extremes are clipped.
constexpr float kSymmetricReach[] = {1.09F, 1.0F, 0.93F, 0.86F, 0.8F};
constexpr float kAsymmetricReach[] = {1.0F, 0.93F, 0.86F, 0.8F};
constexpr float kLargestScale = 65504;      // of a float16
constexpr float kSmallestScale = 0x1p-24F;  // below it, all elements of a group are 0

QuantizedLayout layout_of(const Params& p) {
  return {p.format, p.rows, p.k, p.group};
}

int64_t rows_per_task(const Params& p) {
  return std::max<int64_t>(1, kTaskElements / std::max<int64_t>(p.k, 1));
}

// Nearest integers, for |x| < 2^22; what NaN becomes is unspecified.
IVec nearest(Vec x) {
  constexpr float kShift = 0x1.8p23F;
  return difference(reinterpret_cast<IVec>(x + kShift), reinterpret_cast<IVec>(kShift + Vec{}));
}
Vec clamp(Vec x, float lo, float hi) {
  x = x > lo ? x : broadcast(lo);
  return x < hi ? x : broadcast(hi);
}
Vec codes_of(Vec x, Vec inverse, Vec zero, float lo, float hi) {
  return __builtin_convertvector(nearest(clamp(x * inverse + zero, lo, hi)), Vec);
}
Vec inverse_of(Vec scale) {
  return scale != 0.0F ? 1.0F / scale : Vec{};
}

// The scale as it will be stored.
Vec stored(Vec scale) {
  float16 lanes[kLanes];
  scale = abs(scale) < kSmallestScale ? Vec{} : clamp(scale, -kLargestScale, kLargestScale);
  store(lanes, scale);
  return load(lanes);
}

// ---- bytes

// Float8 codes of |x| <= 448: of normal numbers the last bits are rounded away, half to even;
// subnormal ones count steps of 2^-9.
IVec float8_codes(Vec x) {
  constexpr int kDropped = 20;                  // bits of a float's fraction
  constexpr uint32_t kRebias = (127 - 7) << 3;  // of what is left
  const UVec magnitude = as_bits(abs(x));
  const UVec odd = magnitude >> kDropped & 1;
  const UVec normal = ((magnitude + ((1U << (kDropped - 1)) - 1) + odd) >> kDropped) - kRebias;
  const IVec steps = nearest(abs(x) * 0x1p9F);
  const IVec code = abs(x) < 0x1p-6F ? steps : reinterpret_cast<IVec>(normal);
  return code | reinterpret_cast<IVec>(as_bits(x) >> 24 & 0x80);
}

template <typename W>
void quantize_row(const W* w, const Params& p, int64_t padded, int8_t* codes, float* scale) {
  constexpr float kInfinity = __builtin_inff(), kGreatest = 0x1.fffffep127F;
  const bool floats = p.format == kFloat8;
  const float last = floats ? 448.0F : 127.0F;
  Vec most{};
  for (int64_t i = 0; i < p.k; i += kLanes) {
    Vec size = abs(load_lanes(w + i, p.k - i));
    if (floats) size = size <= kGreatest ? size : broadcast(kInfinity);
    most = maximum(most, size);
  }
  *scale = maximum(most) / last;
  if (floats && *scale == kInfinity) *scale = __builtin_nanf("");
  const Vec inverse = inverse_of(broadcast(*scale));
  using Bytes = VectorOf<int8_t, kLanes>;
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Vec x = i < p.k ? load_lanes(w + i, p.k - i) : Vec{};
    const Vec at = clamp(x * inverse, -last, last);
    const IVec code = floats ? float8_codes(at) : nearest(at);
    *reinterpret_cast<Bytes::unaligned*>(codes + i) = __builtin_convertvector(code, Bytes::type);
  }
}

// ---- int4

// kLanes groups: element i of all of them is x[i].
struct Groups {
  Vec x[kLongestGroup];
  int64_t size;
};

struct Fit {
  Vec scale, zero;  // zero in steps of codes
};

// Codes c = nearest(x * inverse) in [-8, 7] explain (Σcx)² / Σcc of Σxx, with scale Σcx / Σcc.
Fit fit_symmetric(const Groups& g) {
  Vec low{}, high{};
  for (int64_t i = 0; i < g.size; ++i) {
    low = minimum(low, g.x[i]);
    high = maximum(high, g.x[i]);
  }
  const Vec extreme = -low > high ? low : high;  // the code that reaches further is -8
  Vec best{}, scale = extreme / -kSymmetricZero;
  for (const float reach : kSymmetricReach) {
    const Vec inverse = inverse_of(extreme * (reach / -kSymmetricZero));
    Vec cx{}, cc{};
    for (int64_t i = 0; i < g.size; ++i) {
      const Vec code = codes_of(g.x[i], inverse, Vec{}, -kSymmetricZero, kSymmetricZero - 1);
      cx += code * g.x[i];
      cc += code * code;
    }
    const Vec candidate = cx * inverse_of(cc), explained = candidate * cx;
    scale = explained > best ? candidate : scale;
    best = explained > best ? explained : best;
  }
  return {stored(scale), broadcast(kSymmetricZero)};
}

// Ranges contain 0, so that a zero point is a code. For codes c, the line x = scale * (c - zero)
// is fitted, the zero is rounded, and the scale fitted again. Codes that are all alike fit no line.
Fit fit_asymmetric(const Groups& g) {
  const float n = static_cast<float>(g.size);
  Vec low{}, high{}, sum_x{};
  for (int64_t i = 0; i < g.size; ++i) {
    low = minimum(low, g.x[i]);
    high = maximum(high, g.x[i]);
    sum_x += g.x[i];
  }
  Vec best{}, best_scale = (high - low) / 15.0F, best_zero{};
  for (const float reach : kAsymmetricReach) {
    const Vec step = (high - low) * (reach / 15.0F), inverse = inverse_of(step);
    const Vec middle = 7.5F - 0.5F * (high + low) * inverse;
    Vec c{}, cx{}, cc{};
    for (int64_t i = 0; i < g.size; ++i) {
      const Vec code = codes_of(g.x[i], inverse, middle, 0, 15);
      c += code;
      cx += code * g.x[i];
      cc += code * code;
    }
    const Vec spread = n * cc - c * c;
    const Vec line = (n * cx - c * sum_x) * inverse_of(spread);
    const Vec crossing = spread > 0.0F ? (c - sum_x * inverse_of(line)) / n : middle;
    const IVec steps = nearest(clamp(crossing / kZeroStep, 0, 255));
    const Vec zero = __builtin_convertvector(steps, Vec) * kZeroStep;
    const Vec dx = cx - zero * sum_x, dd = cc - 2.0F * zero * c + n * zero * zero;
    const Vec candidate = dx * inverse_of(dd), explained = candidate * dx;
    best_scale = explained > best ? candidate : best_scale;
    best_zero = explained > best ? zero : best_zero;
    best = explained > best ? explained : best;
  }
  return {stored(best_scale), best_zero};
}

// The words of 32 elements in kLanes groups: lane i of out[d] holds words 2d and 2d + 1 of group i.
void encode_run(const Vec* x, const Fit& fit, Vec inverse, IVec* out) {
  for (int d = 0; d < 4; ++d) {
    IVec both{};
    for (int half = 0; half < 2; ++half) {
      for (int nibble = 0; nibble < 4; ++nibble) {
        const Vec at = clamp(x[8 * nibble + 2 * d + half] * inverse + fit.zero, 0, 15);
        both |= (nearest(at) & 15) << (16 * half + 4 * nibble);
      }
    }
    out[d] = both;
  }
}

struct Scratch {
  Groups* groups;
  IVec* words;  // [run][4], as encode_run
  float* scales;
  float* zeros;
  int64_t bytes;

  explicit Scratch(void* base) {
    Arena arena(base);
    groups = arena.take<Groups>(1);
    words = arena.take<IVec>(4 * (kLongestGroup / kCodeRun));
    scales = arena.take<float>(kLanes);
    zeros = arena.take<float>(kLanes);
    bytes = arena.bytes();
  }
};

template <typename W>
class Int4 {
 public:
  Int4(const KernelCall& call, const Params& p)
      : p_(p),
        layout_(layout_of(p)),
        s_(call.scratch),
        w_(static_cast<const W*>(call.operands[0])),
        to_(static_cast<std::byte*>(call.operands[1])) {}

  // Groups [begin, end) of the whole weight, `layout.groups` of them a row.
  void run(int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, end - first);
      gather(first, count);
      const Fit fit = p_.format == kInt4 ? fit_symmetric(*s_.groups) : fit_asymmetric(*s_.groups);
      const Vec inverse = inverse_of(fit.scale);
      for (int64_t run = 0; run < p_.group / kCodeRun; ++run) {
        encode_run(s_.groups->x + run * kCodeRun, fit, inverse, s_.words + 4 * run);
      }
      store(s_.scales, fit.scale);
      store(s_.zeros, fit.zero / kZeroStep);
      for (int64_t i = 0; i < count; ++i) scatter(first + i, i);
    }
  }

 private:
  void gather(int64_t first, int64_t count) {
    s_.groups->size = p_.group;
    for (int64_t at = 0; at < p_.group; at += kLanes) {
      Vec square[kLanes] = {};
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = (first + i) / layout_.groups;
        const int64_t column = (first + i) % layout_.groups * p_.group + at;
        if (column < p_.k) square[i] = load_lanes(w_ + row * p_.ldw + column, p_.k - column);
      }
      transpose(square);
      for (int i = 0; i < kLanes; ++i) s_.groups->x[at + i] = square[i];
    }
  }
  void scatter(int64_t group, int64_t lane) {
    auto* codes = reinterpret_cast<int32_t*>(to_) + group * (p_.group / 8);
    for (int64_t d = 0; d < p_.group / 8; ++d) codes[d] = s_.words[d][lane];
    reinterpret_cast<float16*>(to_ + layout_.scales)[group] = from_float<float16>(s_.scales[lane]);
    if (p_.format == kInt4Asymmetric) {
      reinterpret_cast<uint8_t*>(to_ + layout_.zeros)[group] = static_cast<uint8_t>(s_.zeros[lane]);
    }
  }

  const Params& p_;
  const QuantizedLayout layout_;
  const Scratch s_;
  const W* w_;
  std::byte* to_;
};

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const QuantizedLayout layout = layout_of(p);
  const int64_t first = call.begin * rows_per_task(p);
  const int64_t end = std::min(call.end * rows_per_task(p), p.rows);
  with_float_type(p.x_dtype, [&]<typename W>(W) {
    if (!has_bytes(p.format)) {
      return Int4<W>(call, p).run(first * layout.groups, end * layout.groups);
    }
    auto* to = static_cast<std::byte*>(call.operands[1]);
    for (int64_t row = first; row < end; ++row) {
      quantize_row(static_cast<const W*>(call.operands[0]) + row * p.ldw, p, layout.k,
                   reinterpret_cast<int8_t*>(to + row * layout.codes),
                   reinterpret_cast<float*>(to + layout.scales) + row);
    }
  });
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  return (p.rows + rows_per_task(p) - 1) / rows_per_task(p);
}

int64_t scratch(const void* params) {
  return has_bytes(static_cast<const Params*>(params)->format) ? 0 : Scratch(nullptr).bytes;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  if (!is_float(p.x_dtype)) return "the weight is not a float of 32 or 16 bits";
  if (const char* why = check_quantized(c, 1, layout_of(p))) return why;
  return Region().dim(p.rows, p.ldw).dim(p.k, 1).reads(c, 0, element_size(p.x_dtype));
}

}  // namespace

extern const KernelEntry quantize_kernel;
const KernelEntry quantize_kernel = {"quantize", Params::kSchema, sizeof(Params), run,
                                     check,      tasks,           scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
