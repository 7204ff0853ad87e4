// conv_winograd and winograd_weights against the definition in double, on every instruction set of
// this machine: partial tiles, channel tails, padding, storage, every epilogue; the refusals; and
// how far float32 results may stray on data like a network's.
#include "tests/cpp/conv_case.h"

namespace npusim::cpu {
namespace {

using Params = abi::ConvWinogradParams;

Operand transform(const TestedIsa& isa, const Operand& w, int32_t dtype, const Params& p,
                  std::mt19937& random) {
  abi::WinogradWeightsParams pack{};
  pack.n = p.out_channels;
  pack.channels = p.in_channels;
  pack.tile = p.tile;
  pack.x_dtype = dtype;
  pack.n_stride = 9 * p.in_channels;
  pack.c_stride = 9;
  pack.h_stride = 3;
  pack.w_stride = 1;
  std::vector<Operand> operands{w, {}};
  const int64_t points = int64_t{p.tile + 2} * (p.tile + 2);
  operands[1].bytes.resize(
      static_cast<size_t>(points * ((p.out_channels + 15) / 16) * 16 * p.in_channels * 4));
  run_kernel(isa["winograd_weights"], pack, operands, random);
  return operands[1];
}

double reference(const Params& p, const std::vector<double>& x, const std::vector<double>& w,
                 int64_t n, int64_t column, const int64_t (&o)[3]) {
  double sum = 0;
  for (int64_t t = 0; t < 9; ++t) {
    const int64_t h = o[1] - p.pad[1] + t / 3, c = o[2] - p.pad[2] + t % 3;
    if (h < 0 || h >= p.in_size[1] || c < 0 || c >= p.in_size[2]) continue;
    const int64_t pixel = n * p.x_strides[0] + h * p.x_strides[3] + c * p.x_strides[4];
    for (int64_t i = 0; i < p.in_channels; ++i) {
      sum += x[static_cast<size_t>(pixel + i)] *
             w[static_cast<size_t>((column * p.in_channels + i) * 9 + t)];
    }
  }
  return sum;
}

void test_conv(const TestedIsa& isa, const Params& p, int32_t w_dtype, std::mt19937& random) {
  const Operand x =
      random_operand(p.x_dtype, extent(p.batch, p.in_channels, p.in_size, p.x_strides), random);
  const Operand w = random_operand(w_dtype, p.out_channels * p.in_channels * 9, random);
  const std::vector<double> a = values_of(x, p.x_dtype), b = values_of(w, w_dtype);
  check_convolution(
      isa["conv_winograd"], p, {x, transform(isa, w, w_dtype, p, random)}, random,
      static_cast<double>(p.in_channels * 9),
      [&](int64_t n, int64_t column, const int64_t (&o)[3]) {
        return reference(p, a, b, n, column, o);
      },
      isa.name, p.tile == 4 ? 4 : 1);
}

Params base(int64_t batch, int64_t channels, int64_t columns, int64_t height, int64_t width,
            int tile) {
  Params p{};
  p.batch = batch;
  p.in_channels = channels;
  p.out_channels = columns;
  p.tile = tile;
  const int64_t size[] = {1, height, width};
  for (int d = 0; d < 3; ++d) {
    p.in_size[d] = p.out_size[d] = size[d];
    p.kernel[d] = d ? 3 : 1;
    p.pad[d] = d ? 1 : 0;
    p.stride[d] = p.dilation[d] = 1;
  }
  channels_last(channels, p.in_size, p.x_strides);
  channels_last(columns, p.out_size, p.y_strides);
  channels_last(columns, p.out_size, p.r_strides);
  return p;
}

Params random_params(std::mt19937& random) {
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  Params p = base(1 + below(2), 1 + below(50), 1 + below(90), 1 + below(12), 1 + below(12),
                  below(2) ? 2 : 4);
  for (int d = 1; d < 3; ++d) {
    p.pad[d] = below(3);
    p.out_size[d] = std::max<int64_t>(1, p.in_size[d] + p.pad[d] + below(3) - 2);
  }
  channels_last(p.in_channels + below(3), p.in_size, p.x_strides);
  channels_last(p.out_channels + below(3), p.out_size, p.y_strides);
  channels_last(p.out_channels + below(3), p.out_size, p.r_strides);
  random_epilogue(p, random);
  return p;
}

// Normal data after a relu, weights of He's variance: the largest error relative to the largest
// output stays within a few roundings.
void test_accuracy(const TestedIsa& isa, int tile, std::mt19937& random) {
  const Params p = base(1, 128, 32, 12, 12, tile);
  std::normal_distribution<float> normal;
  const auto fill = [&](int64_t count, auto&& value) {
    Operand out;
    out.bytes.resize(static_cast<size_t>(count * 4));
    for (int64_t i = 0; i < count; ++i) {
      const float x = value();
      std::memcpy(out.bytes.data() + i * 4, &x, 4);
    }
    return out;
  };
  const float deviation = std::sqrt(2.0F / (9 * 128));
  const Operand x = fill(128 * 144, [&] { return std::max(normal(random), 0.0F); });
  const Operand w = fill(32 * 128 * 9, [&] { return normal(random) * deviation; });
  std::vector<Operand> operands{x, transform(isa, w, 0, p, random),
                                fill(32 * 144, [] { return 0.0F; })};
  run_kernel(isa["conv_winograd"], p, operands, random);
  const std::vector<double> a = values_of(x, 0), b = values_of(w, 0), y = values_of(operands[2], 0);
  double worst = 0, largest = 0;
  for (int64_t pixel = 0; pixel < 144; ++pixel) {
    for (int64_t c = 0; c < 32; ++c) {
      const double want = reference(p, a, b, 0, c, {0, pixel / 12, pixel % 12});
      worst = std::max(worst, std::abs(y[static_cast<size_t>(pixel * 32 + c)] - want));
      largest = std::max(largest, std::abs(want));
    }
  }
  std::printf("conv_winograd F(%d) on %s: largest error %.1e of the largest output\n", tile,
              isa.name, worst / largest);
  expect(worst / largest < (tile == 4 ? 5e-6 : 2e-6), isa.name, "Winograd lost accuracy");
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const Params good = base(1, 4, 16, 5, 5, 2);
  const std::vector<Operand> operands{random_operand(0, 100, random),
                                      random_operand(0, 16 * 16 * 4, random),
                                      random_operand(0, 400, random)};
  const auto refuses = [&](const char* what, auto&& change) {
    Params p = good;
    change(p);
    expect(!refusal(isa["conv_winograd"], p, operands).empty(), isa.name,
           std::string("accepted ") + what);
  };
  expect(refusal(isa["conv_winograd"], good, operands).empty(), isa.name, "refused a sound one");
  refuses("another tile", [](auto& p) { p.tile = 3; });
  refuses("a tile with more points than the weights", [](auto& p) { p.tile = 4; });
  refuses("a stride", [](auto& p) { p.stride[1] = 2; });
  refuses("a dilation", [](auto& p) { p.dilation[2] = 2; });
  refuses("a larger kernel", [](auto& p) { p.kernel[1] = 5; });
  refuses("a third dimension", [](auto& p) { p.in_size[0] = p.out_size[0] = 2; });
  refuses("an output too large", [](auto& p) { p.out_size[1] = 6; });
}

// Whatever the bytes say, check() refuses or the run stays in bounds (sanitizers watch).
void test_arbitrary_bytes(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 3000; ++i) {
    const Params good = random_params(random);
    Params p = good;
    auto* bytes = reinterpret_cast<unsigned char*>(&p);
    for (int j = 0; j < 2; ++j) bytes[random() % sizeof p] = static_cast<unsigned char>(random());
    std::vector<Operand> operands = random_operands(good, random);
    const int64_t points = int64_t{good.tile + 2} * (good.tile + 2);
    const int64_t packed = points * ((good.out_channels + 15) / 16) * 16 * good.in_channels;
    operands.insert(operands.begin() + 1, random_operand(0, packed, random));
    if (refusal(isa["conv_winograd"], p, operands).empty()) {
      run_kernel(isa["conv_winograd"], p, operands, random);
    }
  }
}

// What `npusim.simulate.shares` says of them, which tests/simulate/test_shares.py has as well.
void test_tasks(const TestedIsa& isa) {
  const std::string_view name(isa.name);
  if (name.find("avx512") != 0 && name != "avx2") return;
  // Tile, size, channels, columns; tasks with vectors of 16 floats, and of 8.
  constexpr int64_t kTasks[][6] = {{4, 56, 64, 64, 6, 7},    {4, 28, 128, 128, 4, 3},
                                   {2, 14, 256, 256, 4, 3},  {2, 14, 512, 512, 3, 4},
                                   {4, 16, 256, 128, 2, 4},  {4, 112, 176, 32, 40, 49},
                                   {2, 14, 48, 112, 2, 4},   {4, 28, 48, 304, 4, 4},
                                   {4, 64, 192, 64, 14, 16}, {2, 8, 16, 16, 1, 1}};
  for (const auto& [tile, size, channels, columns, wide, narrow] : kTasks) {
    const Params p = base(1, channels, columns, size, size, static_cast<int>(tile));
    const int64_t found = isa["conv_winograd"].tasks(&p, 2);
    expect(found == (name == "avx2" ? narrow : wide), describe(p, "conv_winograd", isa.name),
           std::to_string(found) + " tasks");
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  std::mt19937 random(1);
  for (const TestedIsa& isa : isas({"winograd_weights", "conv_winograd"})) {
    for (const int tile : {2, 4}) {
      test_conv(isa, base(1, 64, 64, 56, 56, tile), 0, random);  // several blocks
      test_conv(isa, base(2, 128, 128, 7, 7, tile), 0, random);  // columns cut
      test_accuracy(isa, tile, random);
    }
    for (int i = 0; i < 300; ++i) {
      test_conv(isa, random_params(random), static_cast<int32_t>(random() % 3), random);
    }
    test_tasks(isa);
    test_refusals(isa, random);
    test_arbitrary_bytes(isa, random);
    std::printf("conv_winograd on %s: ok\n", isa.name);
  }
}
