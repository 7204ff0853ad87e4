// conv_depthwise against the definition in double, on every instruction set of this machine:
// borders, channel tails, dilation, stride, one to three dimensions, storage, every epilogue.
#include "tests/cpp/conv_case.h"

namespace npusim::cpu {
namespace {

using Params = abi::ConvDepthwiseParams;

int64_t taps_of(const Params& p) {
  return p.kernel[0] * p.kernel[1] * p.kernel[2];
}

double reference(const Params& p, const std::vector<double>& x, const std::vector<double>& w,
                 int64_t n, int64_t channel, const int64_t (&o)[3]) {
  double sum = 0;
  for (int64_t t = 0; t < taps_of(p); ++t) {
    const int64_t k[3] = {t / p.kernel[2] / p.kernel[1], t / p.kernel[2] % p.kernel[1],
                          t % p.kernel[2]};
    int64_t at = n * p.x_strides[0] + channel;
    bool inside = true;
    for (int d = 0; d < 3; ++d) {
      const int64_t i = o[d] * p.stride[d] - p.pad[d] + k[d] * p.dilation[d];
      inside &= i >= 0 && i < p.in_size[d];
      at += i * p.x_strides[2 + d];
    }
    if (!inside) continue;
    sum += x[static_cast<size_t>(at)] * w[static_cast<size_t>(t * p.out_channels + channel)];
  }
  return sum;
}

void test_conv(const TestedIsa& isa, const Params& p, std::mt19937& random) {
  const Operand x =
      random_operand(p.x_dtype, extent(p.batch, p.in_channels, p.in_size, p.x_strides), random);
  const Operand w = random_operand(p.w_dtype, p.out_channels * taps_of(p), random);
  const std::vector<double> a = values_of(x, p.x_dtype), b = values_of(w, p.w_dtype);
  check_convolution(
      isa["conv_depthwise"], p, {x, w}, random, static_cast<double>(taps_of(p)),
      [&](int64_t n, int64_t channel, const int64_t (&o)[3]) {
        return reference(p, a, b, n, channel, o);
      },
      isa.name);
}

Params random_params(int dimensions, std::mt19937& random) {
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  Params p{};
  p.batch = 1 + below(2);
  p.in_channels = p.out_channels = 1 + below(70);
  p.w_dtype = below(3);
  random_window(p, dimensions, false, random);
  channels_last(p.in_channels + below(3), p.in_size, p.x_strides);
  channels_last(p.out_channels + below(3), p.out_size, p.y_strides);
  channels_last(p.out_channels + below(3), p.out_size, p.r_strides);
  random_epilogue(p, random);
  return p;
}

void test_shapes(const TestedIsa& isa, std::mt19937& random) {
  struct Shape {
    int64_t channels, size, kernel, stride;
  };
  for (const Shape& s :
       {Shape{32, 56, 3, 1}, Shape{144, 28, 3, 2}, Shape{96, 14, 5, 1}, Shape{40, 14, 7, 1},
        Shape{960, 7, 3, 1}, Shape{5, 9, 3, 1}, Shape{24, 51, 3, 2}, Shape{20, 60, 5, 2},
        Shape{40, 33, 7, 1}, Shape{17, 26, 5, 1}, Shape{16, 2, 7, 1}}) {
    Params p{};
    p.batch = 1;
    p.in_channels = p.out_channels = s.channels;
    for (int d = 0; d < 3; ++d) {
      p.in_size[d] = d ? s.size : 1;
      p.kernel[d] = d ? s.kernel : 1;
      p.stride[d] = d ? s.stride : 1;
      p.pad[d] = d ? s.kernel / 2 : 0;
      p.dilation[d] = 1;
      p.out_size[d] = (p.in_size[d] + 2 * p.pad[d] - p.kernel[d]) / p.stride[d] + 1;
    }
    channels_last(p.in_channels, p.in_size, p.x_strides);
    channels_last(p.out_channels, p.out_size, p.y_strides);
    p.has_bias = 1;
    for (const auto act : {abi::Opcode::kRelu, abi::Opcode::kHardswish}) {
      p.act = static_cast<int32_t>(act);
      test_conv(isa, p, random);
    }
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  Params good{};
  good.batch = 1;
  good.in_channels = good.out_channels = 4;
  for (int d = 0; d < 3; ++d) {
    good.in_size[d] = good.out_size[d] = d ? 5 : 1;
    good.kernel[d] = d ? 3 : 1;
    good.pad[d] = d ? 1 : 0;
    good.stride[d] = good.dilation[d] = 1;
  }
  channels_last(4, good.in_size, good.x_strides);
  channels_last(4, good.out_size, good.y_strides);
  const std::vector<Operand> operands{random_operand(0, 100, random), random_operand(0, 36, random),
                                      random_operand(0, 100, random)};
  const KernelEntry& kernel = isa["conv_depthwise"];
  const auto refuses = [&](const char* what, auto&& change) {
    Params p = good;
    change(p);
    expect(!refusal(kernel, p, operands).empty(), isa.name, std::string("accepted ") + what);
  };
  expect(refusal(kernel, good, operands).empty(), isa.name, "refused a sound convolution");
  refuses("more channels out than in", [](auto& p) { p.out_channels = 8; });
  refuses("an input too large", [](auto& p) { p.in_size[1] = 6; });
  refuses("a larger kernel", [](auto& p) { p.kernel[1] = 4; });
  refuses("a strided input", [](auto& p) { p.x_strides[1] = 2; });
  refuses("a zero stride", [](auto& p) { p.stride[1] = 0; });
}

// Whatever the bytes say, check() refuses or the run stays in bounds (sanitizers watch).
void test_arbitrary_bytes(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 3000; ++i) {
    const Params good = random_params(2, random);
    Params p = good;
    auto* bytes = reinterpret_cast<unsigned char*>(&p);
    for (int j = 0; j < 2; ++j) bytes[random() % sizeof p] = static_cast<unsigned char>(random());
    std::vector<Operand> operands = random_operands(good, random);
    operands.insert(operands.begin() + 1,
                    random_operand(good.w_dtype, good.out_channels * taps_of(good), random));
    const KernelEntry& kernel = isa["conv_depthwise"];
    if (!refusal(kernel, p, operands).empty()) continue;
    if (kernel.scratch(&p) < (1 << 26)) run_kernel(kernel, p, operands, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  std::mt19937 random(1);
  for (const npusim::cpu::TestedIsa& isa : npusim::cpu::isas({"conv_depthwise"})) {
    npusim::cpu::test_shapes(isa, random);
    for (int i = 0; i < 400; ++i) {
      npusim::cpu::test_conv(isa, npusim::cpu::random_params(1 + i % 3, random), random);
    }
    npusim::cpu::test_refusals(isa, random);
    npusim::cpu::test_arbitrary_bytes(isa, random);
    std::printf("conv_depthwise on %s: ok\n", isa.name);
  }
}
