// gemm and pack_b against a plain product in double, on every instruction set of this machine:
// row and column tails, long K, strided rows, 16-bit storage, every epilogue; and the refusals.
#include "tests/cpp/kernel_call.h"

namespace npusim::cpu {
namespace {

struct Case {
  abi::GemmParams p;
  std::string name;
};

std::string describe(const TestedIsa& isa, const abi::GemmParams& p) {
  return std::string(isa.name) + " gemm m=" + std::to_string(p.m) + " n=" + std::to_string(p.n) +
         " k=" + std::to_string(p.k) + " dtypes " + std::to_string(p.x_dtype) +
         std::to_string(p.b_dtype) + std::to_string(p.y_dtype) + std::to_string(p.r_dtype) +
         " residual " + std::to_string(p.residual) + " act " + std::to_string(p.act);
}

// w[n][k] packed into B.
Operand pack(const TestedIsa& isa, const Operand& w, const abi::GemmParams& p,
             std::mt19937& random) {
  abi::PackBParams pack{};
  pack.groups = pack.taps = 1;
  pack.n = p.n;
  pack.channels = p.k;
  pack.n_stride = p.k;
  pack.c_stride = 1;
  pack.x_dtype = pack.y_dtype = p.b_dtype;
  std::vector<Operand> operands{w, {}};
  operands[1].bytes.resize(
      static_cast<size_t>((p.n + 15) / 16 * 16 * p.k * dtype_bytes(p.b_dtype)));
  run_kernel(isa["pack_b"], pack, operands, random);
  return operands[1];
}

void test_product(const TestedIsa& isa, abi::GemmParams p, std::mt19937& random) {
  const Operand x = random_operand(p.x_dtype, (p.m - 1) * p.ldx + p.k, random);
  const Operand w = random_operand(p.b_dtype, p.n * p.k, random);
  std::vector<Operand> operands{x, pack(isa, w, p, random)};
  if (p.has_bias) operands.push_back(random_operand(0, p.n, random));
  if (p.residual) {
    operands.push_back(random_operand(p.r_dtype, (p.m - 1) * p.ldr + p.n, random));
  }
  operands.push_back(random_operand(p.y_dtype, (p.m - 1) * p.ldy + p.n, random));
  const std::vector<double> before = values_of(operands.back(), p.y_dtype);
  run_kernel(isa["gemm"], p, operands, random);

  const std::vector<double> a = values_of(x, p.x_dtype), b = values_of(w, p.b_dtype);
  const std::vector<double> bias = p.has_bias ? values_of(operands[2], 0) : std::vector<double>{};
  const std::vector<double> residual =
      p.residual ? values_of(operands[operands.size() - 2], p.r_dtype) : std::vector<double>{};
  const std::vector<double> y = values_of(operands.back(), p.y_dtype);
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      double sum = p.has_bias ? bias[static_cast<size_t>(n)] : 0;
      for (int64_t k = 0; k < p.k; ++k) {
        sum += a[static_cast<size_t>(m * p.ldx + k)] * b[static_cast<size_t>(n * p.k + k)];
      }
      const double r = p.residual ? residual[static_cast<size_t>(m * p.ldr + n)] : 0;
      if (p.residual == 1) sum += r;
      sum = reference_activation(static_cast<abi::Opcode>(p.act), sum, p.act_lo, p.act_hi);
      if (p.residual == 2) sum += r;
      expect_close(y[static_cast<size_t>(m * p.ldy + n)], sum, p.y_dtype, static_cast<double>(p.k),
                   describe(isa, p));
    }
    for (int64_t n = p.n; n < p.ldy && m + 1 < p.m; ++n) {  // between the rows: untouched
      const auto at = static_cast<size_t>(m * p.ldy + n);
      expect(y[at] == before[at], describe(isa, p), "wrote beyond the columns of a row");
    }
  }
}

abi::GemmParams plain(int64_t m, int64_t n, int64_t k) {
  abi::GemmParams p{};
  p.m = m;
  p.n = n;
  p.k = k;
  p.ldx = k;
  p.ldy = p.ldr = n;
  return p;
}

void test_shapes(const TestedIsa& isa, std::mt19937& random) {
  for (int64_t m = 1; m <= 20; ++m) {
    for (const int64_t n : {1, 5, 8, 15, 16, 17, 24, 33, 64, 81})
      test_product(isa, plain(m, n, 37), random);
  }
  for (int64_t n = 1; n <= 9; ++n) {  // whose rows share vectors
    for (int64_t k = 1; k <= 9; ++k) test_product(isa, plain(19, n, k), random);
  }
  for (const int64_t k : {0, 1, 255, 256, 257, 513, 1200}) {
    test_product(isa, plain(13, 70, k), random);
  }
  test_product(isa, plain(500, 130, 70), random);  // several row blocks
  test_product(isa, plain(260, 64, 600), random);  // and blocks of K
  test_product(isa, plain(1, 2000, 800), random);  // many columns of one row
  test_product(isa, plain(64, 88, 352), random);   // two tasks of three panels
  test_product(isa, plain(40, 16, 900), random);   // of one panel
  test_product(isa, plain(256, 72, 168), random);  // three row blocks by two of columns
  test_product(isa, plain(99, 400, 190), random);  // more blocks of columns than whole tiles
}

// What tests/simulate/test_shares.py says, too: with vectors of 16 floats, and of 8.
void test_tasks(const TestedIsa& isa) {
  const std::string_view name(isa.name);
  if (name.find("avx512") != 0 && name != "avx2") return;
  const int at = name == "avx2" ? 4 : 3;
  constexpr int64_t kTasks[][5] = {
      {64, 88, 352, 2, 2},  {2, 160, 384, 2, 2},     {100, 72, 840, 2, 5},     {256, 72, 168, 6, 2},
      {64, 296, 480, 6, 7}, {1024, 64, 4584, 9, 32}, {32, 5512, 1160, 44, 44}, {16, 16, 3136, 2, 2},
      {4, 24, 40, 1, 1},    {1, 151936, 64, 48, 48}, {99, 400, 190, 8, 8}};
  for (const auto& sizes : kTasks) {
    const abi::GemmParams p = plain(sizes[0], sizes[1], sizes[2]);
    const int64_t found = isa["gemm"].tasks(&p, 2);
    expect(found == sizes[at], describe(isa, p), std::to_string(found) + " tasks");
  }
}

void test_random(const TestedIsa& isa, std::mt19937& random) {
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  for (int i = 0; i < 300; ++i) {
    abi::GemmParams p = plain(1 + below(40), 1 + below(90), 1 + below(i % 8 ? 60 : 700));
    p.ldx += below(5);
    p.ldy += below(5);
    p.ldr += below(5);
    p.x_dtype = below(3);
    p.b_dtype = below(3);
    p.y_dtype = below(3);
    p.r_dtype = below(3);
    p.has_bias = below(2);
    p.residual = below(3);
    p.act = static_cast<int32_t>(kTestedActivations[below(8)]);
    p.act_lo = -1.5F;
    p.act_hi = 2.25F;
    test_product(isa, p, random);
  }
}

// A NaN stays one, through every range.
void test_nan(const TestedIsa& isa, std::mt19937& random) {
  for (const abi::Opcode act : {abi::Opcode::kCopy, abi::Opcode::kRelu, abi::Opcode::kClamp}) {
    for (const auto& [m, n] : {std::pair{3, 16}, {3, 5}, {1, 70}, {2, 40}}) {
      abi::GemmParams p = plain(m, n, 4);
      p.act = static_cast<int32_t>(act);
      p.act_hi = 6;
      const Operand w = random_operand(0, p.n * p.k, random);
      std::vector<Operand> operands{random_operand(0, p.m * p.k, random), pack(isa, w, p, random),
                                    random_operand(0, p.m * p.n, random)};
      const float nan = NAN;
      std::memcpy(operands[0].bytes.data(), &nan, 4);
      run_kernel(isa["gemm"], p, operands, random);
      const std::vector<double> y = values_of(operands[2], 0);
      const auto row = y.begin() + n;
      expect(std::all_of(y.begin(), row, [](double v) { return std::isnan(v); }), describe(isa, p),
             "lost a NaN");
      expect(std::none_of(row, y.end(), [](double v) { return std::isnan(v); }), describe(isa, p),
             "spread a NaN");
    }
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const abi::GemmParams good = plain(4, 16, 8);
  const std::vector<Operand> operands{random_operand(0, 32, random), random_operand(0, 128, random),
                                      random_operand(0, 64, random)};
  const auto refuses = [&](const char* what, auto&& change) {
    abi::GemmParams p = good;
    change(p);
    expect(!refusal(isa["gemm"], p, operands).empty(), isa.name, std::string("accepted ") + what);
  };
  expect(refusal(isa["gemm"], good, operands).empty(), isa.name, "refused a sound gemm");
  refuses("a row too many", [](auto& p) { p.m = 5; });
  refuses("a column beyond the panels", [](auto& p) { p.n = 17; });
  refuses("a longer K", [](auto& p) { p.k = 9; });
  refuses("a negative size", [](auto& p) { p.m = -1; });
  refuses("a huge size", [](auto& p) { p.k = INT64_MAX; });
  refuses("a product of sizes that overflows", [](auto& p) { p.m = p.ldx = int64_t{1} << 40; });
  refuses("overlapping rows of y", [](auto& p) {
    p.ldy = 0;
    p.m = 100;
    p.ldx = 0;
  });
  refuses("a stride before the operand", [](auto& p) { p.ldx = -8; });
  refuses("an unknown dtype", [](auto& p) { p.y_dtype = 77; });
  refuses("a double", [](auto& p) { p.x_dtype = 3; });
  refuses("an unknown activation", [](auto& p) { p.act = 1000; });
  refuses("a binary activation", [](auto& p) { p.act = static_cast<int32_t>(abi::Opcode::kAdd); });
  refuses("an operand that is not there", [](auto& p) { p.has_bias = 1; });
  refuses("an unknown residual mode", [](auto& p) { p.residual = 3; });
}

// Whatever the bytes say, check() refuses or the run stays in bounds (sanitizers watch).
void test_arbitrary_bytes(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 20000; ++i) {
    abi::GemmParams p = plain(4, 16, 8);
    std::vector<Operand> operands{random_operand(0, 32, random), random_operand(0, 128, random),
                                  random_operand(0, 64, random)};
    auto* bytes = reinterpret_cast<unsigned char*>(&p);
    for (int j = 0; j < 2; ++j) bytes[random() % sizeof p] = static_cast<unsigned char>(random());
    if (refusal(isa["gemm"], p, operands).empty()) run_kernel(isa["gemm"], p, operands, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  std::mt19937 random(1);
  for (const npusim::cpu::TestedIsa& isa : npusim::cpu::isas({"pack_b", "gemm"})) {
    npusim::cpu::test_shapes(isa, random);
    npusim::cpu::test_tasks(isa);
    npusim::cpu::test_random(isa, random);
    npusim::cpu::test_nan(isa, random);
    npusim::cpu::test_refusals(isa, random);
    npusim::cpu::test_arbitrary_bytes(isa, random);
    std::printf("gemm on %s: ok\n", isa.name);
  }
}
