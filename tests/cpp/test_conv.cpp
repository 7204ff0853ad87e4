// conv against the definition in double, on every instruction set of this machine: one to three
// dimensions, groups, dilation, asymmetric padding, transposed, tails, any input layout, 16-bit
// storage, every epilogue; and the refusals.
#include "tests/cpp/conv_case.h"

namespace npusim::cpu {
namespace {

using Params = abi::ConvParams;

int64_t taps_of(const Params& p) {
  return p.kernel[0] * p.kernel[1] * p.kernel[2];
}

// w[group][column][channel][tap], as PyTorch stores it, packed into B.
Operand pack(const TestedIsa& isa, const Operand& w, const Params& p, std::mt19937& random) {
  const int64_t taps = taps_of(p), channels = p.in_channels / p.groups;
  abi::PackBParams pack{};
  pack.groups = p.groups;
  pack.n = p.out_channels / p.groups;
  pack.taps = taps;
  pack.channels = channels;
  pack.t_stride = 1;
  pack.c_stride = taps;
  pack.n_stride = taps * channels;
  pack.g_stride = pack.n * pack.n_stride;
  pack.x_dtype = pack.y_dtype = p.w_dtype;
  std::vector<Operand> operands{w, {}};
  const int64_t panels = (pack.n + 15) / 16;
  operands[1].bytes.resize(
      static_cast<size_t>(p.groups * panels * 16 * taps * channels * dtype_bytes(p.w_dtype)));
  run_kernel(isa["pack_b"], pack, operands, random);
  return operands[1];
}

// The input position that tap `k` of output `o` reads along dimension d, or -1.
int64_t source(const Params& p, int d, int64_t o, int64_t k) {
  int64_t i = o * p.stride[d] - p.pad[d] + k * p.dilation[d];
  if (p.transposed) {
    i = o + p.pad[d] - k * p.dilation[d];
    if (i < 0 || i % p.stride[d] != 0) return -1;
    i /= p.stride[d];
  }
  return i >= 0 && i < p.in_size[d] ? i : -1;
}

double reference(const Params& p, const std::vector<double>& x, const std::vector<double>& w,
                 int64_t n, int64_t column, const int64_t (&o)[3]) {
  const int64_t channels = p.in_channels / p.groups, columns = p.out_channels / p.groups;
  const int64_t taps = taps_of(p), group = column / columns;
  double sum = 0;
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t z = source(p, 0, o[0], t / p.kernel[2] / p.kernel[1]);
    const int64_t y = source(p, 1, o[1], t / p.kernel[2] % p.kernel[1]);
    const int64_t c = source(p, 2, o[2], t % p.kernel[2]);
    if (z < 0 || y < 0 || c < 0) continue;
    const int64_t pixel =
        n * p.x_strides[0] + z * p.x_strides[2] + y * p.x_strides[3] + c * p.x_strides[4];
    for (int64_t i = 0; i < channels; ++i) {
      const int64_t channel = group * channels + i;
      sum += x[static_cast<size_t>(pixel + channel * p.x_strides[1])] *
             w[static_cast<size_t>((column * channels + i) * taps + t)];
    }
  }
  return sum;
}

void test_conv(const TestedIsa& isa, const Params& p, std::mt19937& random, double tolerance = 1) {
  const Operand x =
      random_operand(p.x_dtype, extent(p.batch, p.in_channels, p.in_size, p.x_strides), random);
  const Operand w =
      random_operand(p.w_dtype, p.out_channels * p.in_channels / p.groups * taps_of(p), random);
  const std::vector<double> a = values_of(x, p.x_dtype), b = values_of(w, p.w_dtype);
  check_convolution(
      isa["conv"], p, {x, pack(isa, w, p, random)}, random,
      static_cast<double>(p.in_channels / p.groups * taps_of(p)),
      [&](int64_t n, int64_t column, const int64_t (&o)[3]) {
        return reference(p, a, b, n, column, o);
      },
      isa.name, tolerance);
}

// Random geometry of `dimensions` spatial dimensions, with a valid output.
Params random_params(int dimensions, std::mt19937& random) {
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  Params p{};
  p.transposed = below(4) == 0;
  p.groups = below(3) ? 1 : 1 + below(3);
  p.batch = 1 + below(2);
  p.in_channels = p.groups * (1 + below(below(3) ? 20 : 4));
  p.out_channels = p.groups * (1 + below(40));
  p.w_dtype = below(3);
  random_window(p, dimensions, p.transposed, random);
  random_layout(p, random);
  random_epilogue(p, random);
  return p;
}

// The shapes that networks are made of, scaled down, and blocks of K and of rows.
void test_shapes(const TestedIsa& isa, std::mt19937& random) {
  struct Shape {
    int64_t channels, columns, size, kernel, stride, pad;
    bool planar;  // an NCHW input
  };
  for (const Shape& s : {Shape{3, 64, 40, 7, 2, 3, true}, Shape{3, 20, 32, 16, 16, 0, true},
                         Shape{64, 64, 14, 3, 1, 1, false}, Shape{32, 48, 15, 3, 2, 1, false},
                         Shape{300, 40, 7, 3, 1, 1, false}, Shape{70, 80, 20, 1, 1, 0, false},
                         Shape{70, 80, 9, 1, 2, 0, false}, Shape{1, 16, 28, 3, 1, 1, true},
                         Shape{4, 3, 9, 5, 1, 2, false}}) {
    Params p{};
    p.batch = 2;
    p.in_channels = s.channels;
    p.out_channels = s.columns;
    p.groups = 1;
    for (int d = 0; d < 3; ++d) {
      p.in_size[d] = d ? s.size : 1;
      p.kernel[d] = d ? s.kernel : 1;
      p.stride[d] = d ? s.stride : 1;
      p.pad[d] = d ? s.pad : 0;
      p.dilation[d] = 1;
      p.out_size[d] = (p.in_size[d] + 2 * p.pad[d] - p.kernel[d]) / p.stride[d] + 1;
    }
    channels_last(p.in_channels, p.in_size, p.x_strides);
    if (s.planar) channels_first(p.in_channels, p.in_size, p.x_strides);
    channels_last(p.out_channels, p.out_size, p.y_strides);
    channels_last(p.out_channels, p.out_size, p.r_strides);
    p.has_bias = 1;
    test_conv(isa, p, random);
    for (const int32_t dtype : {1, 2}) {
      p.x_dtype = p.w_dtype = p.y_dtype = dtype;
      p.has_bias = dtype + 1;  // and factors; and offsets
      test_conv(isa, p, random);
    }
  }
}

// 3 x 3 kernels stored in 16 bits, of enough channels that some sets compute them by Winograd's
// algorithm: tails of channels, columns and tiles, several blocks, every epilogue.
void test_transformed(const TestedIsa& isa, std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int i = 0; i < 40; ++i) {
    Params p{};
    p.batch = 1 + below(2);
    p.groups = 1;
    p.in_channels = 30 + below(20);
    p.out_channels = 30 + below(40);
    for (int d = 0; d < 3; ++d) {
      p.stride[d] = p.dilation[d] = p.kernel[d] = p.in_size[d] = p.out_size[d] = 1;
      if (d == 0) continue;
      p.kernel[d] = 3;
      p.in_size[d] = 1 + below(24);
      p.pad[d] = below(3);
      p.out_size[d] = std::max<int64_t>(1, p.in_size[d] + p.pad[d] + below(3) - 2);
    }
    channels_last(p.in_channels + below(3), p.in_size, p.x_strides);
    channels_last(p.out_channels + below(3), p.out_size, p.y_strides);
    channels_last(p.out_channels + below(3), p.out_size, p.r_strides);
    random_epilogue(p, random);
    p.w_dtype = 1 + static_cast<int32_t>(below(2));
    test_conv(isa, p, random, 4);
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  Params good{};
  good.batch = good.groups = 1;
  good.in_channels = 4;
  good.out_channels = 16;
  for (int d = 0; d < 3; ++d) {
    good.in_size[d] = good.out_size[d] = d ? 5 : 1;
    good.kernel[d] = d ? 3 : 1;
    good.pad[d] = d ? 1 : 0;
    good.stride[d] = good.dilation[d] = 1;
  }
  channels_last(4, good.in_size, good.x_strides);
  channels_last(16, good.out_size, good.y_strides);
  const std::vector<Operand> operands{random_operand(0, 100, random),
                                      random_operand(0, 36 * 16, random),
                                      random_operand(0, 400, random)};
  const auto refuses = [&](const char* what, auto&& change) {
    Params p = good;
    change(p);
    expect(!refusal(isa["conv"], p, operands).empty(), isa.name, std::string("accepted ") + what);
  };
  expect(refusal(isa["conv"], good, operands).empty(), isa.name, "refused a sound conv");
  refuses("an output too large", [](auto& p) { p.out_size[2] = 6; });
  refuses("an input too large", [](auto& p) { p.in_size[1] = 6; });
  refuses("a zero stride", [](auto& p) { p.stride[1] = 0; });
  refuses("a negative dilation", [](auto& p) { p.dilation[2] = -1; });
  refuses("an empty kernel", [](auto& p) { p.kernel[0] = 0; });
  refuses("a larger kernel", [](auto& p) { p.kernel[1] = 4; });
  refuses("no groups", [](auto& p) { p.groups = 0; });
  refuses("groups that do not divide", [](auto& p) { p.groups = 3; });
  refuses("a strided output", [](auto& p) { p.y_strides[1] = 2; });
  refuses("a stride outside", [](auto& p) { p.x_strides[3] = -20; });
  refuses("a huge batch", [](auto& p) { p.batch = INT64_MAX; });
  refuses("a huge padding", [](auto& p) { p.pad[2] = INT64_MIN; });
  refuses("a double", [](auto& p) { p.w_dtype = 3; });
  std::vector<Operand> biased = operands;
  biased.insert(biased.begin() + 2, random_operand(0, 2 * 16, random));
  for (const int32_t vectors : {-1, 1, 2, 3, 4}) {
    Params p = good;
    p.has_bias = vectors;
    const bool accepted = refusal(isa["conv"], p, biased).empty();
    expect(accepted == (vectors == 1 || vectors == 2), isa.name,
           std::to_string(vectors) + " vectors where there are two");
  }
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
                    random_operand(good.w_dtype,
                                   good.groups * ((good.out_channels / good.groups + 15) / 16) *
                                       16 * taps_of(good) * good.in_channels / good.groups,
                                   random));
    if (!refusal(isa["conv"], p, operands).empty()) continue;
    if (isa["conv"].scratch(&p) < (1 << 28)) run_kernel(isa["conv"], p, operands, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  std::mt19937 random(1);
  for (const npusim::cpu::TestedIsa& isa : npusim::cpu::isas({"pack_b", "conv"})) {
    npusim::cpu::test_shapes(isa, random);
    npusim::cpu::test_transformed(isa, random);
    for (int i = 0; i < 400; ++i) {
      npusim::cpu::test_conv(isa, npusim::cpu::random_params(1 + i % 3, random), random);
    }
    npusim::cpu::test_refusals(isa, random);
    npusim::cpu::test_arbitrary_bytes(isa, random);
    std::printf("conv on %s: ok\n", isa.name);
  }
}
