// pack_int8 and conv_int8 on every instruction set of this machine, against sums in int64: windows,
// groups, depthwise, batched products, both signednesses with extreme values, zero points, and each
// kind of result; the refusals; and mutated parameters, which check() must refuse or which must
// then run inside their operands.
#include "tests/cpp/conv_case.h"
#include "tests/cpp/mutation.h"

namespace npusim::cpu {
namespace {

using Params = abi::ConvInt8Params;

constexpr auto kInt8 = static_cast<int32_t>(abi::DType::kInt8);
constexpr auto kUint8 = static_cast<int32_t>(abi::DType::kUint8);
constexpr auto kInt32 = static_cast<int32_t>(abi::DType::kInt32);

int64_t byte_at(int32_t dtype, const Operand& o, int64_t i) {
  const auto raw = std::to_integer<uint8_t>(o.bytes[static_cast<size_t>(i)]);
  return dtype == kInt8 ? static_cast<int8_t>(raw) : raw;
}

// Half of the bytes are the ones with which saturating arithmetic would go wrong.
Operand random_bytes(int64_t count, std::mt19937& random) {
  constexpr uint8_t kExtremes[] = {0x00, 0x7F, 0x80, 0xFF};
  Operand out;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = random() % 2 ? kExtremes[random() % 4] : static_cast<uint8_t>(random());
    out.bytes.push_back(std::byte{value});
  }
  return out;
}
template <typename T>
Operand vector_of(const std::vector<T>& values) {
  Operand out;
  out.bytes.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
  return out;
}
template <typename T>
T value_at(const Operand& o, int64_t i) {
  T value;
  std::memcpy(&value, o.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

bool makes_bytes(const Params& p) {
  return p.y_dtype == kInt8 || p.y_dtype == kUint8;
}
// Whether bytes are made of activated floats.
bool is_activated(const Params& p) {
  const auto act = static_cast<abi::Opcode>(p.act);
  return makes_bytes(p) && act != abi::Opcode::kCopy && act != abi::Opcode::kRelu;
}

// A convolution and everything it reads. The weight is [groups][columns][taps][channels], dense.
struct Problem {
  Params p{};
  Operand x, w, packed, x_zero, w_zeros, scale, sum_bias, bias, residual, terms, y_zero;

  int64_t channels() const { return p.depthwise ? 1 : p.in_channels / p.groups; }
  int64_t columns() const { return p.depthwise ? p.out_channels : p.out_channels / p.groups; }
  int64_t taps() const { return p.kernel[0] * p.kernel[1] * p.kernel[2]; }
  int64_t y_extent(const int64_t (&strides)[5]) const {
    int64_t end = (p.batch - 1) * strides[0] + (p.groups - 1) * p.y_group;
    for (int d = 0; d < 3; ++d) end += (p.out_size[d] - 1) * strides[2 + d];
    return end + p.out_channels / p.groups;
  }
  int64_t x_extent() const {
    int64_t end = (p.batch - 1) * p.x_strides[0] + (p.groups - 1) * p.x_group;
    for (int d = 0; d < 3; ++d) end += (p.in_size[d] - 1) * p.x_strides[2 + d];
    return end + (p.in_channels / p.groups - 1) * p.x_strides[1] + 1;
  }
  std::vector<Operand> operands() const {
    std::vector<Operand> out{x, packed};
    if (p.has_x_zero) out.push_back(x_zero);
    if (p.w_zeros) out.push_back(w_zeros);
    if (p.scales) out.push_back(scale);
    if (p.has_sum_bias) out.push_back(sum_bias);
    if (p.has_bias) out.push_back(bias);
    if (p.residual) out.push_back(residual);
    if ((p.residual && makes_bytes(p)) || is_activated(p)) out.push_back(terms);
    if (p.has_y_zero) out.push_back(y_zero);
    const int64_t size = makes_bytes(p) ? 1 : p.y_dtype == kInt32 ? 4 : dtype_bytes(p.y_dtype);
    Operand y;
    y.bytes.resize(static_cast<size_t>(y_extent(p.y_strides) * size));
    out.push_back(y);
    return out;
  }
};

Operand packed(const TestedIsa& isa, const Problem& problem, std::mt19937& random) {
  const int64_t channels = problem.channels(), taps = problem.taps(), n = problem.columns();
  abi::PackInt8Params p{};
  p.groups = problem.p.groups;
  p.n = n;
  p.taps = taps;
  p.channels = channels;
  p.c_stride = 1;
  p.t_stride = channels;
  p.n_stride = taps * channels;
  p.g_stride = n * p.n_stride;
  p.x_dtype = problem.p.w_dtype;
  p.depthwise = problem.p.depthwise;
  const int64_t block = p.depthwise ? 64 : 16;
  const int64_t panels = (n + block - 1) / block * block / 16, k = (taps * channels + 3) / 4 * 4;
  std::vector<Operand> operands{problem.w, {}};
  operands[1].bytes.resize(static_cast<size_t>(p.groups * panels * 16 * (k + 4)));
  run_kernel(isa["pack_int8"], p, operands, random);
  return operands[1];
}

void fill_operands(Problem& problem, const TestedIsa& isa, std::mt19937& random) {
  Params& p = problem.p;
  const auto some = [&](int64_t n, float low, float high) {
    std::uniform_real_distribution<float> each(low, high);
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(each(random));
    return vector_of(values);
  };
  problem.x = random_bytes(problem.x_extent(), random);
  problem.w =
      random_bytes(p.groups * problem.columns() * problem.taps() * problem.channels(), random);
  problem.packed = packed(isa, problem, random);
  problem.x_zero = random_bytes(1, random);
  problem.w_zeros = random_bytes(p.w_zeros, random);
  const float step = 0.02F / std::sqrt(static_cast<float>(problem.taps() * problem.channels()));
  problem.scale = some(p.scales, 0.2F * step, step);
  std::vector<int32_t> sums;
  for (int64_t i = 0; i < p.out_channels; ++i)
    sums.push_back(static_cast<int32_t>(random() % 2000) - 1000);
  problem.sum_bias = vector_of(sums);
  problem.bias = some(p.out_channels, -20, 20);
  if (p.r_dtype == kInt8 || p.r_dtype == kUint8) {
    problem.residual = random_bytes(problem.y_extent(p.r_strides), random);
  } else {
    problem.residual = random_operand(p.r_dtype, problem.y_extent(p.r_strides), random);
  }
  const float last = p.requantization ? -17 : 17.25F;  // a zero point, or all that is added
  problem.terms = vector_of<float>({-100, 90, 0.75F, 0.5F, last});
  if (is_activated(p)) problem.terms = vector_of<float>({0.75F});
  problem.y_zero = random_bytes(1, random);
}

int64_t sum_of(const Problem& q, int64_t n, int64_t channel, const int64_t (&at)[3]) {
  const Params& p = q.p;
  const int64_t columns = q.columns(), group = p.depthwise ? 0 : channel / columns;
  const int64_t x_zero = p.has_x_zero ? byte_at(p.x_dtype, q.x_zero, 0) : 0;
  const int64_t w_zero =
      p.w_zeros ? byte_at(p.w_dtype, q.w_zeros, p.w_zeros == 1 ? 0 : channel) : 0;
  int64_t sum = p.has_sum_bias ? value_at<int32_t>(q.sum_bias, channel) : 0;
  for (int64_t t = 0; t < q.taps(); ++t) {
    const int64_t k[] = {t / p.kernel[2] / p.kernel[1], t / p.kernel[2] % p.kernel[1],
                         t % p.kernel[2]};
    int64_t from = n * p.x_strides[0] + group * p.x_group;
    bool inside = true;
    for (int d = 0; d < 3; ++d) {
      const int64_t i = at[d] * p.stride[d] - p.pad[d] + k[d] * p.dilation[d];
      inside &= i >= 0 && i < p.in_size[d];
      from += i * p.x_strides[2 + d];
    }
    for (int64_t c = 0; inside && c < q.channels(); ++c) {
      const int64_t w = byte_at(p.w_dtype, q.w, (channel * q.taps() + t) * q.channels() + c);
      const int64_t x =
          byte_at(p.x_dtype, q.x, from + (p.depthwise ? channel : c * p.x_strides[1]));
      sum += (x - x_zero) * (w - w_zero);
    }
  }
  return sum;
}

// value * factor / 2^shift as integers round it, by the rules of abi/requantization.py but
// "double".
int64_t rounded(__int128 value, int shift, int32_t rule) {
  const __int128 whole = __int128{1} << shift,
                 down = value >= 0 ? value / whole : -((-value + whole - 1) / whole);
  const __int128 rest = 2 * (value - down * whole) - whole;  // the sign says which half
  const bool odd = down % 2 != 0;
  const bool up = rule == 4   ? false
                  : rest != 0 ? rest > 0
                  : rule == 1 ? odd
                  : rule == 2 ? true
                              : value >= 0;
  return static_cast<int64_t>(down + (up ? 1 : 0));
}

// A sum times a float of 24 bits, exactly, then rounded; twice by TensorFlow Lite's rule.
int64_t requantized(int64_t sum, float scale, int32_t rule) {
  int exponent = 0;
  const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(scale, &exponent), 31));
  const int shift = 31 - exponent;
  if (rule != 5) return rounded(static_cast<__int128>(sum) * mantissa, shift, rule);
  const __int128 product = static_cast<__int128>(sum) * mantissa;
  const __int128 nudge = product >= 0 ? 1 << 30 : 1 - (1 << 30);
  return rounded((product + nudge) / (__int128{1} << 31), shift - 31, 3);
}

void expect_integers(const Problem& q, int64_t sum, int64_t channel, const Operand& y, int64_t at,
                     int64_t residual_at, const std::string& where) {
  const Params& p = q.p;
  const int64_t zero = p.has_y_zero ? byte_at(p.y_dtype, q.y_zero, 0) : 0;
  int64_t low = p.y_dtype == kInt8 ? -128 : 0;
  const int64_t high = low + 255;
  if (static_cast<abi::Opcode>(p.act) == abi::Opcode::kRelu) low = std::max(low, zero);
  int64_t v =
      requantized(sum, value_at<float>(q.scale, p.scales == 1 ? 0 : channel), p.requantization);
  if (p.residual) {
    const auto term = [&](int64_t i) { return value_at<float>(q.terms, i); };
    v = std::clamp(v, static_cast<int64_t>(term(0)), static_cast<int64_t>(term(1)));
    const int64_t other =
        byte_at(p.r_dtype, q.residual, residual_at) - static_cast<int64_t>(term(4));
    // 0.75 and 0.5 are integers at the shift of the larger.
    const __int128 total = static_cast<__int128>(v) * 3 + static_cast<__int128>(other) * 2;
    v = rounded(total, 2, p.requantization == 5 ? 3 : p.requantization);
  }
  const int64_t got = byte_at(p.y_dtype, y, at);
  const int64_t want = std::clamp(v + zero, low, high);
  expect(got == want, where,
         "by integers: got " + std::to_string(got) + ", expected " + std::to_string(want));
}

// What the kernel's definition makes of a sum, rounded once more than floats allow for bytes.
void expect_result(const Problem& q, int64_t sum, int64_t channel, const Operand& y, int64_t at,
                   int64_t residual_at, const std::string& where) {
  const Params& p = q.p;
  if (p.y_dtype == kInt32) {
    return expect(value_at<int32_t>(y, at) == sum, where, "the sum is not exact");
  }
  if (p.requantization) return expect_integers(q, sum, channel, y, at, residual_at, where);
  double v = static_cast<double>(sum) * value_at<float>(q.scale, p.scales == 1 ? 0 : channel);
  if (p.has_bias) v += value_at<float>(q.bias, channel);
  const auto act = static_cast<abi::Opcode>(p.act);
  if (!makes_bytes(p)) {
    const double r =
        p.residual
            ? load_as(p.r_dtype, q.residual.bytes.data() + residual_at * dtype_bytes(p.r_dtype))
            : 0;
    if (p.residual == 1) v += r;
    v = reference_activation(act, v, p.act_lo, p.act_hi);
    if (p.residual == 2) v += r;
    return expect_close(load_as(p.y_dtype, y.bytes.data() + at * dtype_bytes(p.y_dtype)), v,
                        p.y_dtype, 1, where);
  }
  const double zero = p.has_y_zero ? static_cast<double>(byte_at(p.y_dtype, q.y_zero, 0)) : 0;
  double low = p.y_dtype == kInt8 ? -128 : 0;
  const double high = low + 255;
  if (act == abi::Opcode::kRelu) low = std::max(low, zero);
  if (is_activated(p)) {
    v = reference_activation(act, v, p.act_lo, p.act_hi) * value_at<float>(q.terms, 0);
  }
  const bool near_half = std::abs(v - std::floor(v) - 0.5) < 1e-4 * (1 + std::abs(v));
  if (p.residual) {
    const auto term = [&](int64_t i) { return static_cast<double>(value_at<float>(q.terms, i)); };
    v = std::nearbyint(std::clamp(v, term(0), term(1))) * term(2) +
        static_cast<double>(byte_at(p.r_dtype, q.residual, residual_at)) * term(3) + term(4) - zero;
  }
  const double want =
      std::clamp(std::nearbyint(v + (p.residual ? zero : 0)) + (p.residual ? 0 : zero), low, high);
  const double got = static_cast<double>(byte_at(p.y_dtype, y, at));
  expect(std::abs(got - want) <= (near_half ? 1 : 0), where,
         "got " + std::to_string(got) + ", expected " + std::to_string(want));
}

void test(Problem& problem, const TestedIsa& isa, std::mt19937& random) {
  fill_operands(problem, isa, random);
  const Params& p = problem.p;
  std::vector<Operand> operands = problem.operands();
  run_kernel(isa["conv_int8"], p, operands, random);
  const std::string where = describe(p, "conv_int8", isa.name);
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t i = 0; i < p.out_size[0] * p.out_size[1] * p.out_size[2]; ++i) {
      const int64_t at[] = {i / p.out_size[2] / p.out_size[1], i / p.out_size[2] % p.out_size[1],
                            i % p.out_size[2]};
      for (int64_t c = 0; c < p.out_channels; ++c) {
        const int64_t columns = p.out_channels / p.groups;
        const auto offset = [&](const int64_t (&s)[5]) {
          return n * s[0] + at[0] * s[2] + at[1] * s[3] + at[2] * s[4] + c / columns * p.y_group +
                 c % columns;
        };
        expect_result(problem, sum_of(problem, n, c, at), c, operands.back(), offset(p.y_strides),
                      offset(p.r_strides), where);
      }
    }
  }
}

void random_result(Problem& problem, std::mt19937& random) {
  Params& p = problem.p;
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  p.x_dtype = below(2) ? kInt8 : kUint8;
  p.w_dtype = below(2) ? kInt8 : kUint8;
  p.has_x_zero = below(2);
  p.w_zeros = below(3) == 0 ? 0 : below(2) ? 1 : p.out_channels;
  p.has_sum_bias = below(2);
  const int kind = below(4);
  if (kind == 0) {
    p.y_dtype = kInt32;
    return;
  }
  p.scales = below(2) ? 1 : p.out_channels;
  p.has_bias = below(2);
  p.residual = below(3) / 2;
  if (kind == 1) {
    p.y_dtype = below(3);
    p.r_dtype = below(3);
    p.residual = below(3);
    p.act = static_cast<int32_t>(kTestedActivations[below(8)]);
    p.act_lo = -1.5F;
    p.act_hi = 2.25F;
    return;
  }
  p.y_dtype = kind == 2 ? kInt8 : kUint8;
  p.r_dtype = below(2) ? kInt8 : kUint8;
  p.has_y_zero = below(2);
  if (below(3) == 0) {
    p.residual = 0;
    p.act = static_cast<int32_t>(kTestedActivations[below(8)]);
    p.act_lo = -20;
    p.act_hi = 30;
    return;
  }
  p.requantization = below(6);
  if (p.requantization) p.has_bias = 0;
  p.act = static_cast<int32_t>(below(2) ? abi::Opcode::kRelu : abi::Opcode::kCopy);
}

// What a window costs a test: positions by taps by channels.
bool takes_long(const Params& p) {
  double work = static_cast<double>(p.batch) * static_cast<double>(p.in_channels);
  for (int d = 0; d < 3; ++d) {
    work *= static_cast<double>(p.out_size[d]) * static_cast<double>(p.kernel[d]);
  }
  return work * static_cast<double>(p.out_channels) > 3e7;
}

void test_windows(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 60; ++i) {
    Problem problem;
    Params& p = problem.p;
    const int shape = i % 4;
    p.batch = 1 + static_cast<int64_t>(random() % 2);
    p.groups = shape == 1 ? 1 + static_cast<int64_t>(random() % 3) : 1;
    const int64_t inner = random() % 2 ? 4 * (1 + random() % 12) : 1 + random() % 21;
    p.in_channels = p.groups * inner;
    p.out_channels = p.groups * (1 + static_cast<int64_t>(random() % 90));
    p.depthwise = shape == 2;
    if (p.depthwise) p.out_channels = p.in_channels += static_cast<int64_t>(random() % 3) * 64;
    random_window(p, 1 + i % 3, false, random);
    random_layout(p, random);
    if (p.depthwise && p.x_strides[1] != 1) channels_last(p.in_channels, p.in_size, p.x_strides);
    p.x_group = inner * p.x_strides[1];
    p.y_group = p.out_channels / p.groups;
    random_result(problem, random);
    test(problem, isa, random);
    run_mutations(isa["conv_int8"], p, problem.operands(), 40, random, takes_long);
  }
}

// Products of matrices: one position a row, and one group a matrix where there are several.
void test_products(const TestedIsa& isa, std::mt19937& random) {
  constexpr int64_t kSizes[][4] = {{1, 1, 1, 1},     {1, 7, 3, 5},    {1, 130, 96, 147},
                                   {1, 40, 200, 64}, {5, 33, 17, 36}, {3, 1, 70, 130}};
  for (const auto& [count, m, n, k] : kSizes) {
    Problem problem;
    Params& p = problem.p;
    p.batch = 1;
    p.groups = count;
    p.in_channels = count * k;
    p.out_channels = count * n;
    for (int d = 0; d < 3; ++d) {
      p.in_size[d] = p.out_size[d] = d == 2 ? m : 1;
      p.kernel[d] = p.stride[d] = p.dilation[d] = 1;
    }
    p.x_strides[1] = p.y_strides[1] = p.r_strides[1] = 1;
    p.x_strides[4] = k;
    p.y_strides[4] = p.r_strides[4] = n;
    p.x_group = m * k;
    p.y_group = m * n;
    random_result(problem, random);
    test(problem, isa, random);
  }
}

// Rounds halves to the even integer and saturates, in any position of a vector.
void test_rounding(const TestedIsa& isa, std::mt19937& random) {
  Problem problem;
  Params& p = problem.p;
  p.batch = p.groups = p.in_channels = 1;
  p.out_channels = p.y_group = 40;
  for (int d = 0; d < 3; ++d) {
    p.in_size[d] = p.out_size[d] = p.kernel[d] = p.stride[d] = p.dilation[d] = 1;
  }
  p.x_strides[1] = p.y_strides[1] = p.r_strides[1] = 1;
  p.x_group = 1;
  p.x_dtype = p.y_dtype = kUint8;
  p.w_dtype = kInt8;
  p.scales = p.has_sum_bias = p.has_y_zero = 1;
  fill_operands(problem, isa, random);
  problem.x = problem.y_zero = vector_of<uint8_t>({0});
  problem.y_zero = vector_of<uint8_t>({3});
  problem.scale = vector_of<float>({0.5F});
  std::vector<int32_t> halves;
  for (int i = 0; i < 40; ++i) halves.push_back(i == 38 ? INT32_MAX : i == 39 ? INT32_MIN : i - 8);
  problem.sum_bias = vector_of(halves);
  std::vector<Operand> operands = problem.operands();
  run_kernel(isa["conv_int8"], p, operands, random);
  for (int64_t i = 0; i < 40; ++i) {
    const double want =
        std::clamp(std::nearbyint(halves[static_cast<size_t>(i)] * 0.5) + 3, 0.0, 255.0);
    expect(static_cast<double>(byte_at(kUint8, operands.back(), i)) == want, isa.name, "rounding");
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  Problem sound;
  Params& p = sound.p;
  p.batch = 1;
  p.groups = 2;
  p.in_channels = 8;
  p.out_channels = 6;
  for (int d = 0; d < 3; ++d) {
    p.in_size[d] = p.out_size[d] = d ? 4 : 1;
    p.kernel[d] = p.stride[d] = p.dilation[d] = 1;
  }
  channels_last(8, p.in_size, p.x_strides);
  channels_last(6, p.out_size, p.y_strides);
  channels_last(6, p.out_size, p.r_strides);
  p.x_group = 4;
  p.y_group = 3;
  p.x_dtype = p.y_dtype = p.r_dtype = kUint8;
  p.w_dtype = kInt8;
  p.scales = p.w_zeros = 6;
  p.has_x_zero = p.has_y_zero = p.has_sum_bias = p.has_bias = p.residual = 1;
  fill_operands(sound, isa, random);
  const KernelEntry& kernel = isa["conv_int8"];
  const std::vector<Operand> operands = sound.operands();
  expect(refusal(kernel, p, operands).empty(), isa.name, "a sound command is refused");
  const auto refused = [&](auto change) {
    Params hostile = p;
    change(hostile);
    expect(!refusal(kernel, hostile, operands).empty(), isa.name, "a hostile command is accepted");
  };
  refused([](Params& q) { q.groups = 0; });
  refused([](Params& q) { q.groups = 3; });
  refused([](Params& q) { q.x_group = 1 << 20; });
  refused([](Params& q) { q.x_group = -1; });
  refused([](Params& q) { q.y_group = INT64_MAX; });
  refused([](Params& q) { q.depthwise = 1; });
  refused([](Params& q) { q.depthwise = 2; });
  refused([](Params& q) { q.x_dtype = 0; });
  refused([](Params& q) { q.w_dtype = kInt32; });
  refused([](Params& q) { q.y_dtype = 9; });
  refused([](Params& q) { q.y_dtype = kInt32; });
  refused([](Params& q) { q.y_dtype = 0; });
  refused([](Params& q) { q.r_dtype = 0; });
  refused([](Params& q) { q.w_zeros = 5; });
  refused([](Params& q) { q.scales = 0; });
  refused([](Params& q) { q.scales = 7; });
  refused([](Params& q) { q.residual = 3; });
  refused([](Params& q) { q.has_bias = 0; });
  refused([](Params& q) { q.requantization = 1; });
  refused([](Params& q) { q.requantization = 6; });
  refused([](Params& q) { q.requantization = -1; });
  refused([](Params& q) { q.act = static_cast<int32_t>(abi::Opcode::kGelu); });
  refused([](Params& q) { q.kernel[1] = int64_t{1} << 30; });
  refused([](Params& q) { q.kernel[2] = 2; });
  refused([](Params& q) { q.in_size[1] = 5; });
  refused([](Params& q) { q.out_size[1] = 5; });
  refused([](Params& q) { q.x_strides[3] = -40; });
  for (size_t i = 0; i < operands.size(); ++i) {
    std::vector<Operand> cut = operands;
    cut[i].bytes.pop_back();
    expect(!refusal(kernel, p, cut).empty(), isa.name, "a short operand is accepted");
  }
  abi::PackInt8Params pack{2, 3, 1, 4, 12, 4, 4, 1, kInt8, 0};
  std::vector<Operand> weights{sound.w, sound.packed};
  expect(refusal(isa["pack_int8"], pack, weights).empty(), isa.name, "a sound pack is refused");
  for (int64_t abi::PackInt8Params::* size :
       {&abi::PackInt8Params::groups, &abi::PackInt8Params::n, &abi::PackInt8Params::taps,
        &abi::PackInt8Params::channels, &abi::PackInt8Params::n_stride}) {
    for (const int64_t value : {int64_t{100}, INT64_MAX, int64_t{-1}}) {
      abi::PackInt8Params hostile = pack;
      hostile.*size = value;
      expect(!refusal(isa["pack_int8"], hostile, weights).empty(), isa.name, "a hostile pack");
    }
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"pack_int8", "conv_int8"})) {
    std::mt19937 random(7);
    test_windows(isa, random);
    test_products(isa, random);
    test_rounding(isa, random);
    test_refusals(isa, random);
    std::printf("%s: passed\n", isa.name);
  }
}
