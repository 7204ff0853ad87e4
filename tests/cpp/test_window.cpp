// pool and resize against loops over every window in double, on every instruction set of this
// machine: one to three dimensions, channels first and last, padding, dilation, adaptive windows,
// indices, NaN, every interpolation; the refusals; and mutated parameters, which check() must
// refuse or which must then run inside their operands.
#include <functional>

#include "tests/cpp/kernel_call.h"
#include "tests/cpp/mutation.h"
#include "tests/cpp/typed_operand.h"

namespace npusim::cpu {
namespace {

constexpr int32_t kDouble = 3, kInt64 = 4;

int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// Strides of [batch, channel, depth, height, width], stored channels last or first.
void lay_out(int64_t (&strides)[5], int64_t channels, const int64_t (&size)[3], bool channels_last,
             int64_t gap) {
  int64_t step = 1;
  const auto place = [&](int d, int64_t n) {
    strides[d] = step;
    step *= n;
  };
  if (channels_last) place(1, channels + gap);
  place(4, size[2] + (channels_last ? 0 : gap));
  place(3, size[1]);
  place(2, size[0]);
  if (!channels_last) place(1, channels);
  strides[0] = step;
}

int64_t extent(int64_t batch, int64_t channels, const int64_t (&size)[3],
               const int64_t (&strides)[5]) {
  return (batch - 1) * strides[0] + (channels - 1) * strides[1] + (size[0] - 1) * strides[2] +
         (size[1] - 1) * strides[3] + (size[2] - 1) * strides[4] + 1;
}

// Calls f(n, c, d, h, w) for every position of an image batch.
template <typename F>
void for_each_position(int64_t batch, int64_t channels, const int64_t (&size)[3], F&& f) {
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t d = 0; d < size[0]; ++d)
        for (int64_t h = 0; h < size[1]; ++h)
          for (int64_t w = 0; w < size[2]; ++w) f(n, c, d, h, w);
}

int64_t at(const int64_t (&strides)[5], int64_t n, int64_t c, int64_t d, int64_t h, int64_t w) {
  return n * strides[0] + c * strides[1] + d * strides[2] + h * strides[3] + w * strides[4];
}

// ---- pool

using Pool = abi::PoolParams;

std::string describe(const TestedIsa& isa, const Pool& p) {
  std::string out = std::string(isa.name) + " pool op " + std::to_string(p.op) + " adaptive " +
                    std::to_string(p.adaptive) + " channels " + std::to_string(p.out_channels);
  for (int d = 0; d < 3; ++d) {
    out += " [" + std::to_string(p.in_size[d]) + " -> " + std::to_string(p.out_size[d]) +
           " kernel " + std::to_string(p.kernel[d]) + " stride " + std::to_string(p.stride[d]) +
           " pad " + std::to_string(p.pad[d]) + " dilation " + std::to_string(p.dilation[d]) + "]";
  }
  return out + " dtypes " + std::to_string(p.x_dtype) + std::to_string(p.y_dtype);
}

Pool random_pool(std::mt19937& random) {
  constexpr int64_t kChannels[] = {1, 2, 3, 4, 7, 8, 15, 16, 20, 64, 70, 130};
  Pool p{};
  p.batch = pick(random, 1, 2);
  p.in_channels = p.out_channels = kChannels[random() % std::size(kChannels)];
  p.op = static_cast<int32_t>(random() % 2);
  p.adaptive = random() % 4 == 0;
  p.count_include_pad = random() % 2;
  p.has_indices = p.op == 0 && random() % 2;
  p.divisor = p.op == 1 && random() % 4 == 0 ? 3 : 0;
  const auto first = pick(random, 0, 2);
  for (int d = 0; d < 3; ++d) {
    p.in_size[d] = p.out_size[d] = p.kernel[d] = p.stride[d] = p.dilation[d] = 1;
    if (d < first) continue;
    p.in_size[d] = pick(random, 1, 11);
    if (p.adaptive) {
      p.out_size[d] = pick(random, 1, 6);
      continue;
    }
    p.kernel[d] = pick(random, 1, 4);
    p.stride[d] = pick(random, 1, 3);
    p.pad[d] = pick(random, 0, p.kernel[d] / 2);
    if (p.op == 0) p.dilation[d] = pick(random, 1, 2);
    const int64_t span = p.in_size[d] + 2 * p.pad[d] - (p.kernel[d] - 1) * p.dilation[d] - 1;
    const int64_t round = random() % 2 ? p.stride[d] - 1 : 0;  // ceil_mode
    p.out_size[d] = span < 0 ? 1 : (span + round) / p.stride[d] + 1;
    if ((p.out_size[d] - 1) * p.stride[d] >= p.in_size[d] + p.pad[d]) --p.out_size[d];
    p.out_size[d] = std::max<int64_t>(1, p.out_size[d]);
  }
  lay_out(p.x_strides, p.in_channels, p.in_size, random() % 3, pick(random, 0, 1));
  lay_out(p.y_strides, p.out_channels, p.out_size, random() % 3, pick(random, 0, 1));
  p.x_dtype = static_cast<int32_t>(random() % 4);
  p.y_dtype = p.x_dtype == kDouble ? kDouble : static_cast<int32_t>(random() % 3);
  return p;
}

// The taps of an output position along one dimension, and the length an average divides by.
struct Window {
  std::vector<int64_t> taps;
  double padded;
};

Window window_of(const Pool& p, int d, int64_t out) {
  Window w;
  if (p.adaptive) {
    const auto in = static_cast<double>(p.in_size[d]), n = static_cast<double>(p.out_size[d]);
    const auto begin = static_cast<int64_t>(std::floor(static_cast<double>(out) * in / n));
    const auto end = static_cast<int64_t>(std::ceil(static_cast<double>(out + 1) * in / n));
    for (int64_t i = begin; i < end; ++i) w.taps.push_back(i);
    w.padded = static_cast<double>(w.taps.size());
    return w;
  }
  const int64_t first = out * p.stride[d] - p.pad[d];
  for (int64_t k = 0; k < p.kernel[d]; ++k) {
    const int64_t i = first + k * p.dilation[d];
    if (i >= 0 && i < p.in_size[d]) w.taps.push_back(i);
  }
  w.padded = static_cast<double>(std::min(first + p.kernel[d], p.in_size[d] + p.pad[d]) - first);
  return w;
}

struct Pooled {
  double value;
  int64_t index;
  double terms;
};

Pooled reference(const Pool& p, const std::vector<double>& x, int64_t n, int64_t c, int64_t od,
                 int64_t oh, int64_t ow) {
  const Window d = window_of(p, 0, od), h = window_of(p, 1, oh), w = window_of(p, 2, ow);
  double sum = 0, top = -INFINITY, taps = 0;
  int64_t index = -1;
  for (const int64_t i : d.taps)
    for (const int64_t j : h.taps)
      for (const int64_t k : w.taps) {
        const double value = x[static_cast<size_t>(at(p.x_strides, n, c, i, j, k))];
        const int64_t position = (i * p.in_size[1] + j) * p.in_size[2] + k;
        sum += value;
        ++taps;
        if (index < 0) index = position;
        if (value > top || std::isnan(value)) {
          top = value;
          index = position;
        }
      }
  if (p.op == 0) return {top, taps > 0 ? index : 0, 1};
  const double divisor = p.divisor > 0         ? static_cast<double>(p.divisor)
                         : p.count_include_pad ? d.padded * h.padded * w.padded
                                               : taps;
  return {taps > 0 ? sum / divisor : 0, 0, taps};
}

void compare(double got, double want, int32_t dtype, double terms, const std::string& where) {
  if (std::isnan(want) || std::isinf(want)) {
    expect(std::isnan(want) ? std::isnan(got) : got == want, where,
           "got " + std::to_string(got) + ", expected " + std::to_string(want));
  } else if (dtype == kDouble) {
    expect(std::abs(got - want) <= 1e-12 * (1 + std::abs(want)), where, "inexact in float64");
  } else {
    expect_close(got, want, dtype, terms, where);
  }
}

std::vector<Operand> pool_operands(const Pool& p, std::mt19937& random) {
  const int64_t y = extent(p.batch, p.out_channels, p.out_size, p.y_strides);
  std::vector<Operand> out{
      typed_operand(p.x_dtype, extent(p.batch, p.in_channels, p.in_size, p.x_strides), random),
      typed_operand(p.y_dtype, y, random)};
  if (p.has_indices) out.push_back(typed_operand(kInt64, y, random));
  return out;
}

void test_pool(const TestedIsa& isa, const Pool& p, std::vector<Operand> operands,
               std::mt19937& random) {
  const std::vector<double> x = numbers_of(operands[0], p.x_dtype);
  run_kernel(isa["pool"], p, operands, random);
  const std::vector<double> y = numbers_of(operands[1], p.y_dtype);
  const auto indices = p.has_indices ? numbers_of(operands[2], kInt64) : std::vector<double>{};
  for_each_position(
      p.batch, p.out_channels, p.out_size, [&](auto n, auto c, auto d, auto h, auto w) {
        const Pooled want = reference(p, x, n, c, d, h, w);
        const auto to = static_cast<size_t>(at(p.y_strides, n, c, d, h, w));
        compare(y[to], want.value, p.y_dtype, want.terms, describe(isa, p));
        if (p.has_indices) {
          expect(indices[to] == static_cast<double>(want.index), describe(isa, p), "a wrong index");
        }
      });
}

// Few positions, many channels: the work is cut along the channels.
Pool global_pool(int64_t channels, int32_t op) {
  Pool p{};
  p.batch = 1;
  p.in_channels = p.out_channels = channels;
  p.op = op;
  p.adaptive = 1;
  for (int d = 0; d < 3; ++d) {
    p.in_size[d] = d ? 7 : 1;
    p.out_size[d] = 1;
  }
  lay_out(p.x_strides, channels, p.in_size, true, 0);
  lay_out(p.y_strides, channels, p.out_size, true, 0);
  return p;
}

void test_nan(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 40; ++i) {
    Pool p = random_pool(random);
    p.op = p.x_dtype = p.y_dtype = 0;
    p.divisor = 0;
    std::vector<Operand> operands = pool_operands(p, random);
    const float specials[] = {NAN, -INFINITY, INFINITY};
    const size_t elements = operands[0].bytes.size() / 4;
    for (size_t k = 0; k < elements; k += 1 + random() % 4) {
      std::memcpy(operands[0].bytes.data() + k * 4, &specials[random() % 3], 4);
    }
    test_pool(isa, p, operands, random);
  }
}

void test_pool_refusals(const TestedIsa& isa, std::mt19937& random) {
  const Pool sound = global_pool(20, 0);
  const std::vector<Operand> operands = pool_operands(sound, random);
  const auto refused = [&](auto&& spoil, const char* what) {
    Pool p = sound;
    spoil(p);
    expect(!refusal(isa["pool"], p, operands).empty(), "pool", std::string("accepted ") + what);
  };
  refused([](Pool& p) { p.in_size[1] = 8; }, "a row too many");
  refused([](Pool& p) { p.out_size[2] = 2; }, "an output too many");
  refused([](Pool& p) { p.in_channels = 19; }, "unequal channels");
  refused([](Pool& p) { p.adaptive = 0; }, "a window of size 0");
  refused([](Pool& p) { p.has_indices = 1; }, "missing indices");
  refused([](Pool& p) { p.op = 2; }, "an unknown operation");
  refused([](Pool& p) { p.y_dtype = kDouble; }, "float32 to float64");
  refused([](Pool& p) { p.y_strides[1] = 0; }, "channels that share an output");
}

// ---- resize

using Resize = abi::ResizeParams;
enum Mode { kNearest, kLinear, kCubic, kNearestExact };

std::string describe(const TestedIsa& isa, const Resize& p) {
  std::string out = std::string(isa.name) + " resize mode " + std::to_string(p.mode) + " align " +
                    std::to_string(p.align_corners) + " channels " + std::to_string(p.channels);
  for (int d = 0; d < 3; ++d) {
    out += " [" + std::to_string(p.in_size[d]) + " -> " + std::to_string(p.out_size[d]) + "]";
  }
  return out + " dtypes " + std::to_string(p.x_dtype) + std::to_string(p.y_dtype);
}

double scale_of_sizes(const Resize& p, int d) {
  const auto in = static_cast<double>(p.in_size[d]), out = static_cast<double>(p.out_size[d]);
  if (!p.align_corners) return in / out;
  return p.out_size[d] > 1 ? (in - 1) / (out - 1) : 0;
}

double scale_of(const Resize& p, int d) {
  return p.scale[d] == -1 ? scale_of_sizes(p, d) : p.scale[d];
}

Resize random_resize(std::mt19937& random) {
  constexpr int64_t kChannels[] = {1, 2, 3, 5, 8, 16, 19, 33, 64};
  Resize p{};
  p.batch = pick(random, 1, 2);
  p.channels = kChannels[random() % std::size(kChannels)];
  p.mode = static_cast<int32_t>(random() % 4);
  p.align_corners = (p.mode == kLinear || p.mode == kCubic) && random() % 2;
  const bool nearest = p.mode == kNearest || p.mode == kNearestExact;
  p.x_dtype = static_cast<int32_t>(random() % (nearest ? 10 : 4));
  p.y_dtype = nearest || p.x_dtype == kDouble ? p.x_dtype : static_cast<int32_t>(random() % 3);
  const auto first = p.mode == kCubic ? 1 : pick(random, 0, 2);
  for (int d = 0; d < 3; ++d) {
    p.in_size[d] = d < first ? 1 : pick(random, 1, 9);
    p.out_size[d] = d < first ? 1 : pick(random, 1, 14);
    p.scale[d] = scale_of_sizes(p, d);
    if (!p.align_corners && random() % 4 == 0) p.scale[d] *= 0.9;  // an explicit scale factor
    if (random() % 4 == 0) p.scale[d] = -1;                        // what the sizes give
  }
  lay_out(p.x_strides, p.channels, p.in_size, random() % 3, pick(random, 0, 1));
  lay_out(p.y_strides, p.channels, p.out_size, random() % 3, pick(random, 0, 1));
  return p;
}

struct Tap {
  int64_t index;
  double weight;
};

double cubic(double x) {
  constexpr double a = -0.75;
  x = std::abs(x);
  if (x <= 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a;
}

// Source positions are float32 unless the image is float64; weights follow from them in double.
std::vector<Tap> taps_of(const Resize& p, int d, int64_t out) {
  const int64_t last = p.in_size[d] - 1;
  const auto clip = [last](double i) {
    return static_cast<int64_t>(std::min(std::max(i, 0.0), static_cast<double>(last)));
  };
  const auto rounded = [&p](double x) {
    return p.x_dtype == kDouble ? x : static_cast<double>(static_cast<float>(x));
  };
  const double scale = rounded(scale_of(p, d)), o = static_cast<double>(out);
  if (p.mode == kNearest) return {{clip(std::floor(rounded(o * scale))), 1}};
  if (p.mode == kNearestExact) return {{clip(std::floor(rounded((o + 0.5) * scale))), 1}};
  double source = p.align_corners ? rounded(scale * o) : rounded(scale * (o + 0.5) - 0.5);
  if (p.mode == kLinear || d == 0) {
    if (p.in_size[d] == p.out_size[d]) return {{out, 1}};  // whatever the scale
    source = std::max(source, 0.0);
    const double left = std::min(std::floor(source), static_cast<double>(last));
    const double right = std::min(source - left, 1.0);
    return {{clip(left), 1 - right}, {clip(left + 1), right}};
  }
  const double left = std::min(std::floor(source), static_cast<double>(last));
  const double t = std::min(source - left, 1.0);
  std::vector<Tap> taps;
  for (int i = -1; i <= 2; ++i) taps.push_back({clip(left + i), cubic(t - i)});
  return taps;
}

std::vector<Operand> resize_operands(const Resize& p, std::mt19937& random) {
  return {typed_operand(p.x_dtype, extent(p.batch, p.channels, p.in_size, p.x_strides), random),
          typed_operand(p.y_dtype, extent(p.batch, p.channels, p.out_size, p.y_strides), random)};
}

void test_resize(const TestedIsa& isa, const Resize& p, std::mt19937& random) {
  std::vector<Operand> operands = resize_operands(p, random);
  const std::vector<double> x = numbers_of(operands[0], p.x_dtype);
  run_kernel(isa["resize"], p, operands, random);
  const std::vector<double> y = numbers_of(operands[1], p.y_dtype);
  for_each_position(p.batch, p.channels, p.out_size, [&](auto n, auto c, auto d, auto h, auto w) {
    double want = 0;
    for (const Tap& i : taps_of(p, 0, d))
      for (const Tap& j : taps_of(p, 1, h))
        for (const Tap& k : taps_of(p, 2, w)) {
          const auto from = at(p.x_strides, n, c, i.index, j.index, k.index);
          want += i.weight * j.weight * k.weight * x[static_cast<size_t>(from)];
        }
    const double got = y[static_cast<size_t>(at(p.y_strides, n, c, d, h, w))];
    if (p.x_dtype > kDouble) {
      expect(got == want, describe(isa, p), "a wrong element");
    } else {
      // A source position carries float32's rounding, about 1e-6 of an image this size.
      compare(got, want, p.y_dtype, p.x_dtype == kDouble ? 1 : 100, describe(isa, p));
    }
  });
}

Resize channels_last(int32_t mode, int64_t channels, int64_t in, int64_t out) {
  Resize p{};
  p.batch = 1;
  p.channels = channels;
  p.mode = mode;
  p.align_corners = 1;
  p.x_dtype = p.y_dtype = static_cast<int32_t>(abi::DType::kBfloat16);
  for (int d = 0; d < 3; ++d) {
    p.in_size[d] = d == 0 ? 1 : d == 1 ? 2 : in;
    p.out_size[d] = d == 0 ? 1 : d == 1 ? 3 : out;
    p.scale[d] = -1;
  }
  lay_out(p.x_strides, channels, p.in_size, true, 1);
  lay_out(p.y_strides, channels, p.out_size, true, 1);
  return p;
}

// Weights of 0 and 1 and halves: infinity times 0 is NaN, and no other channel sees it.
void test_resize_infinity(const TestedIsa& isa, std::mt19937& random) {
  const Resize p = channels_last(kLinear, 19, 2, 3);
  std::vector<Operand> operands = resize_operands(p, random);
  const int64_t at_infinity = at(p.x_strides, 0, 18, 0, 1, 0);
  const uint16_t infinity = 0x7F80;
  std::memcpy(operands[0].bytes.data() + 2 * at_infinity, &infinity, 2);
  run_kernel(isa["resize"], p, operands, random);
  const std::vector<double> y = numbers_of(operands[1], p.y_dtype);
  for_each_position(1, p.channels, p.out_size, [&](auto n, auto c, auto d, auto h, auto w) {
    const double got = y[static_cast<size_t>(at(p.y_strides, n, c, d, h, w))];
    const bool seen = c == 18 && w < 2;  // the outer lines also with a weight of 0
    const bool weighed = h == 1;
    expect(std::isfinite(got) == !seen, describe(isa, p), "an infinity went astray");
    expect(!seen || std::isnan(got) == !weighed, describe(isa, p), "NaN went astray");
  });
}

// No images take no scratch, whatever sizes they would have.
void test_resize_of_nothing(const TestedIsa& isa) {
  Resize p = channels_last(kLinear, 2, 2, 2);
  p.batch = 0;
  p.in_size[1] = p.out_size[1] = 1;
  p.in_size[2] = p.out_size[2] = int64_t{1} << 60;
  for (int64_t* strides : {p.x_strides, p.y_strides}) {
    std::fill_n(strides, 5, 0);
    strides[1] = 1;
  }
  const std::vector<Operand> none(2);
  expect(refusal(isa["resize"], p, none).empty(), describe(isa, p), "nothing was refused");
  expect(isa["resize"].scratch(&p) == 0, describe(isa, p), "nothing takes scratch");
}

void test_resize_refusals(const TestedIsa& isa, std::mt19937& random) {
  Resize sound{};
  sound.batch = 1;
  sound.channels = 4;
  for (int d = 0; d < 3; ++d) {
    sound.in_size[d] = d ? 3 : 1;
    sound.out_size[d] = d ? 6 : 1;
    sound.scale[d] = d ? 0.5 : 1;
  }
  sound.mode = kLinear;
  lay_out(sound.x_strides, 4, sound.in_size, true, 0);
  lay_out(sound.y_strides, 4, sound.out_size, true, 0);
  const std::vector<Operand> operands = resize_operands(sound, random);
  const auto refused = [&](auto&& spoil, const char* what) {
    Resize p = sound;
    spoil(p);
    expect(!refusal(isa["resize"], p, operands).empty(), "resize", std::string("accepted ") + what);
  };
  refused([](Resize& p) { p.in_size[2] = 4; }, "a column too many");
  refused([](Resize& p) { p.in_size[1] = 0; }, "an empty image");
  refused([](Resize& p) { p.scale[1] = NAN; }, "a scale that is no number");
  refused([](Resize& p) { p.scale[1] = -2; }, "a negative scale");
  refused([](Resize& p) { p.mode = 4; }, "an unknown interpolation");
  refused([](Resize& p) { p.x_dtype = kInt64; }, "an interpolation of integers");
  refused([](Resize& p) { p.y_strides[4] = 0; }, "columns that share an output");
}

void test_isa(const TestedIsa& isa) {
  std::mt19937 random(17);
  for (int i = 0; i < 300; ++i) {
    const Pool p = random_pool(random);
    test_pool(isa, p, pool_operands(p, random), random);
  }
  for (const int64_t channels : {1, 64, 1000, 2048}) {
    const Pool p = global_pool(channels, channels % 3 ? 1 : 0);
    test_pool(isa, p, pool_operands(p, random), random);
  }
  test_nan(isa, random);
  test_pool_refusals(isa, random);
  for (int i = 0; i < 300; ++i) test_resize(isa, random_resize(random), random);
  for (const int32_t mode : {kLinear, kCubic}) {  // lines in several pieces
    test_resize(isa, channels_last(mode, 67, 600, 601), random);
  }
  test_resize_infinity(isa, random);
  test_resize_of_nothing(isa);
  test_resize_refusals(isa, random);
  for (int i = 0; i < 60; ++i) {
    const Pool p = random_pool(random);
    run_mutations(isa["pool"], p, pool_operands(p, random), 50, random);
    const Resize r = random_resize(random);
    run_mutations(isa["resize"], r, resize_operands(r, random), 50, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"pool", "resize"})) test_isa(isa);
}
