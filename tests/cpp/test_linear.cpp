// linear against a plain product in double, on every instruction set of this machine: tails of
// rows, columns and K, weights in several segments, the gated form, 16-bit storage, every
// epilogue; the same bits however the tasks are shared; and the refusals.
#include "tests/cpp/kernel_call.h"

namespace npusim::cpu {
namespace {

std::string describe(const TestedIsa& isa, const abi::LinearParams& p) {
  return std::string(isa.name) + (p.gated ? " gated" : "") + " linear m=" + std::to_string(p.m) +
         " n=" + std::to_string(p.n) + " k=" + std::to_string(p.k) + " segments " +
         std::to_string(p.segments) + " dtypes " + std::to_string(p.x_dtype) +
         std::to_string(p.w_dtype) + std::to_string(p.y_dtype) + std::to_string(p.r_dtype) +
         " residual " + std::to_string(p.residual) + " act " + std::to_string(p.act);
}

// Elements that `rows` rows of `columns` take, `stride` apart.
int64_t extent(int64_t rows, int64_t stride, int64_t columns) {
  return rows > 0 ? (rows - 1) * stride + columns : 0;
}

std::vector<Operand> random_operands(const abi::LinearParams& p, std::mt19937& random) {
  std::vector<Operand> operands{random_operand(p.x_dtype, extent(p.m, p.ldx, p.k), random)};
  for (int i = 0; i < p.segments; ++i) {
    operands.push_back(random_operand(p.w_dtype, extent(p.rows[i], p.ldw[i], p.k), random));
  }
  if (p.has_bias) operands.push_back(random_operand(0, p.n * (1 + p.gated), random));
  if (p.residual) {
    operands.push_back(random_operand(p.r_dtype, extent(p.m, p.ldr, p.n), random));
  }
  operands.push_back(random_operand(p.y_dtype, extent(p.m, p.ldy, p.n), random));
  return operands;
}

// x · Wᵀ + bias, all rows of W, in double.
std::vector<double> reference_sums(const abi::LinearParams& p,
                                   const std::vector<Operand>& operands) {
  const std::vector<double> x = values_of(operands[0], p.x_dtype);
  std::vector<double> bias(static_cast<size_t>(p.n * (1 + p.gated)));
  if (p.has_bias) bias = values_of(operands[static_cast<size_t>(1 + p.segments)], 0);
  std::vector<double> sums;
  for (int64_t m = 0; m < p.m; ++m) {
    size_t column = 0;
    for (int i = 0; i < p.segments; ++i) {
      const std::vector<double> w = values_of(operands[static_cast<size_t>(1 + i)], p.w_dtype);
      for (int64_t r = 0; r < p.rows[i]; ++r) {
        double sum = bias[column++];
        for (int64_t k = 0; k < p.k; ++k) {
          sum += x[static_cast<size_t>(m * p.ldx + k)] * w[static_cast<size_t>(r * p.ldw[i] + k)];
        }
        sums.push_back(sum);
      }
    }
  }
  return sums;
}

void test_product(const TestedIsa& isa, const abi::LinearParams& p, std::mt19937& random) {
  std::vector<Operand> operands = random_operands(p, random);
  const std::vector<double> before = values_of(operands.back(), p.y_dtype);
  run_kernel(isa["linear"], p, operands, random);

  const std::vector<double> sums = reference_sums(p, operands);
  const std::vector<double> y = values_of(operands.back(), p.y_dtype);
  std::vector<double> residual;
  if (p.residual) residual = values_of(operands[operands.size() - 2], p.r_dtype);
  const auto act = static_cast<abi::Opcode>(p.act);
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      const size_t at = static_cast<size_t>(m * p.n * (1 + p.gated) + n);
      const double r = p.residual ? residual[static_cast<size_t>(m * p.ldr + n)] : 0;
      double sum = sums[at] + (p.residual == 1 ? r : 0);
      sum = reference_activation(act, sum, p.act_lo, p.act_hi);
      if (p.residual == 2) sum += r;
      double terms = static_cast<double>(p.k);
      if (p.gated) {
        const double up = sums[at + static_cast<size_t>(p.n)];
        sum *= up;
        terms *= (1 + std::abs(up)) * (1 + std::abs(up));  // what errors of the gate grow by
      }
      expect_close(y[static_cast<size_t>(m * p.ldy + n)], sum, p.y_dtype, terms, describe(isa, p));
    }
    for (int64_t n = p.n; n < p.ldy && m + 1 < p.m; ++n) {  // between the rows: untouched
      const auto at = static_cast<size_t>(m * p.ldy + n);
      expect(y[at] == before[at], describe(isa, p), "wrote beyond the columns of a row");
    }
  }
}

abi::LinearParams plain(int64_t m, int64_t n, int64_t k, int32_t dtype = 0) {
  abi::LinearParams p{};
  p.m = m;
  p.n = n;
  p.k = k;
  p.ldx = p.ldw[0] = k;
  p.ldy = p.ldr = n;
  p.segments = 1;
  p.rows[0] = n;
  p.x_dtype = p.w_dtype = p.y_dtype = dtype;
  return p;
}

abi::LinearParams gated(int64_t m, int64_t n, int64_t k, int32_t dtype = 0) {
  abi::LinearParams p = plain(m, n, k, dtype);
  p.gated = 1;
  p.rows[0] = 2 * n;
  p.act = static_cast<int32_t>(abi::Opcode::kSilu);
  return p;
}

void test_shapes(const TestedIsa& isa, std::mt19937& random) {
  for (const int32_t dtype : {0, 1, 2}) {
    for (int64_t m = 0; m <= 14; ++m) {
      for (const int64_t n : {0, 1, 3, 4, 15, 17, 64, 81}) {
        test_product(isa, plain(m, n, 37, dtype), random);
      }
    }
    for (const int64_t k : {0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 95}) {
      test_product(isa, plain(2, 9, k, dtype), random);
      test_product(isa, plain(9, 6, k, dtype), random);
      test_product(isa, gated(3, 5, k, dtype), random);
    }
    test_product(isa, plain(260, 40, 70, dtype), random);   // several row blocks
    test_product(isa, plain(10, 20, 5000, dtype), random);  // several blocks of K
    test_product(isa, gated(9, 70, 3100, dtype), random);
    test_product(isa, plain(1, 3000, 65, dtype), random);  // many columns of one row
    test_product(isa, gated(2, 900, 600, dtype), random);
    for (const int64_t m : {1, 2, 5}) test_product(isa, plain(m, 7, 2071, dtype), random);
  }
}

void test_random(const TestedIsa& isa, std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  for (int i = 0; i < 400; ++i) {
    abi::LinearParams p = plain(1 + below(i % 2 ? 4 : 40), 1 + below(90), 1 + below(200));
    p.gated = below(2);
    p.segments = 1 + below(abi::kLinearSegments);
    int64_t left = p.n * (1 + p.gated);
    for (int s = 0; s < p.segments; ++s) {
      p.rows[s] = s + 1 < p.segments ? below(left + 1) : left;
      p.ldw[s] = p.k + below(5);
      left -= p.rows[s];
    }
    p.ldx += below(5);
    p.ldy += below(5);
    p.ldr += below(5);
    p.w_dtype = below(3);
    p.x_dtype = below(3) ? p.w_dtype : below(3);
    p.y_dtype = below(3);
    p.r_dtype = below(3);
    p.has_bias = below(2);
    p.residual = p.gated ? 0 : below(3);
    p.act = static_cast<int32_t>(kTestedActivations[below(8)]);
    p.act_lo = -1.5F;
    p.act_hi = 2.25F;
    test_product(isa, p, random);
  }
}

// What a row of W that no tile may read holds must not reach a sum: here, NaN all around.
void test_neighbours(const TestedIsa& isa, std::mt19937& random) {
  for (const int32_t dtype : {0, 1, 2}) {
    for (const int64_t m : {1, 9}) {
      abi::LinearParams p = plain(m, 5, 37, dtype);
      p.ldx = p.ldw[0] = 40;
      std::vector<Operand> operands = random_operands(p, random);
      for (size_t o = 0; o < 2; ++o) {
        const auto size = static_cast<size_t>(dtype_bytes(dtype));
        for (size_t at = 0; at < operands[o].bytes.size() / size; ++at) {
          if (at % 40 < 37) continue;
          std::memset(operands[o].bytes.data() + at * size, 0xFF, size);
        }
      }
      run_kernel(isa["linear"], p, operands, random);
      for (const double y : values_of(operands.back(), dtype)) {
        expect(std::isfinite(y), describe(isa, p), "read beyond the end of a row");
      }
    }
  }
}

// However tasks are handed out, and whatever stands in the other rows of x.
void test_determinism(const TestedIsa& isa, std::mt19937& random) {
  for (const int64_t m : {1, 4, 130}) {
    const abi::LinearParams p = gated(m, 300, 700, 2);
    const std::vector<Operand> operands = random_operands(p, random);
    std::vector<Operand> once = operands, again = operands;
    run_kernel(isa["linear"], p, once, random);
    run_kernel(isa["linear"], p, again, random);
    expect(once.back().bytes == again.back().bytes, describe(isa, p), "is not repeatable");
    expect(isa["linear"].tasks(&p, 1) == isa["linear"].tasks(&p, 64), describe(isa, p),
           "its tasks depend on the workers");
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  abi::LinearParams good = plain(4, 16, 8);
  good.segments = 2;
  good.rows[0] = 10;
  good.rows[1] = 6;
  good.ldw[1] = 8;
  const std::vector<Operand> operands = random_operands(good, random);
  const auto refuses = [&](const char* what, auto&& change) {
    abi::LinearParams p = good;
    change(p);
    expect(!refusal(isa["linear"], p, operands).empty(), isa.name, std::string("accepted ") + what);
  };
  expect(refusal(isa["linear"], good, operands).empty(), isa.name, "refused a sound linear");
  refuses("a row too many", [](auto& p) { p.m = 5; });
  refuses("a column too many", [](auto& p) { p.n = 17; });
  refuses("segments of more rows than columns", [](auto& p) { p.rows[1] = 7; });
  refuses("a segment that ends early", [](auto& p) {
    p.rows[0] = 9;
    p.rows[1] = 7;
  });
  refuses("rows that are negative", [](auto& p) {
    p.rows[0] = 20;
    p.rows[1] = -4;
  });
  refuses("a sum of rows that overflows", [](auto& p) { p.rows[0] = p.rows[1] = INT64_MAX; });
  refuses("a longer K", [](auto& p) { p.k = 9; });
  refuses("a huge size", [](auto& p) { p.k = INT64_MAX; });
  refuses("a gated size that overflows", [](auto& p) {
    p.gated = 1;
    p.n = INT64_MAX;
  });
  refuses("half the rows a gated product needs", [](auto& p) { p.gated = 1; });
  refuses("a gated residual", [](auto& p) {
    p.gated = p.residual = 1;
    p.n = 8;
  });
  refuses("a gate that is no flag", [](auto& p) { p.gated = 2; });
  refuses("no segments", [](auto& p) { p.segments = 0; });
  refuses("too many segments", [](auto& p) { p.segments = 5; });
  refuses("a segment that is not there", [](auto& p) { p.segments = 3; });
  refuses("a stride before the operand", [](auto& p) { p.ldw[1] = -8; });
  refuses("an unknown dtype", [](auto& p) { p.w_dtype = 77; });
  refuses("a double", [](auto& p) { p.x_dtype = 3; });
  refuses("an unknown activation", [](auto& p) { p.act = 1000; });
  refuses("an operand that is not there", [](auto& p) { p.has_bias = 1; });
  refuses("an unknown residual mode", [](auto& p) { p.residual = 3; });
}

// Whatever the bytes say, check() refuses or the run stays in bounds (sanitizers watch).
void test_arbitrary_bytes(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 20000; ++i) {
    abi::LinearParams p = i % 2 ? gated(4, 8, 9, 2) : plain(4, 16, 8, 2);
    std::vector<Operand> operands = random_operands(p, random);
    auto* bytes = reinterpret_cast<unsigned char*>(&p);
    for (int j = 0; j < 2; ++j) bytes[random() % sizeof p] = static_cast<unsigned char>(random());
    if (refusal(isa["linear"], p, operands).empty()) run_kernel(isa["linear"], p, operands, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  std::mt19937 random(1);
  for (const npusim::cpu::TestedIsa& isa : npusim::cpu::isas({"linear"})) {
    npusim::cpu::test_shapes(isa, random);
    npusim::cpu::test_random(isa, random);
    npusim::cpu::test_neighbours(isa, random);
    npusim::cpu::test_determinism(isa, random);
    npusim::cpu::test_refusals(isa, random);
    npusim::cpu::test_arbitrary_bytes(isa, random);
    std::printf("linear on %s: ok\n", isa.name);
  }
}
