// quantize and quantized_linear on every instruction set of this machine: the stored weight decoded
// by the plainest code and held against the original; products against the decoded weight in
// double; tails, segments, gates, every epilogue; rows alone and among others; and the refusals.
#include "tests/cpp/kernel_call.h"

namespace npusim::cpu {
namespace {

enum Format : int32_t { kInt8 = 1, kInt4 = 2, kInt4Asymmetric = 3 };

int64_t lines(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// The layout that kernels/cpu/quantized.h documents, read element by element.
struct Stored {
  int64_t k, codes, groups, group, scales, zeros, bytes;
  int32_t format;

  Stored(const abi::QuantizeParams& p) : format(p.format) {
    k = (p.k + 127) / 128 * 128;
    codes = format == kInt8 ? k : k / 2;
    group = format == kInt8 ? k : p.group;
    groups = format == kInt8 ? 1 : k / group;
    scales = lines(p.rows * codes);
    zeros = scales + lines(p.rows * groups * (format == kInt8 ? 4 : 2));
    bytes = zeros + (format == kInt4Asymmetric ? lines(p.rows * groups) : 0) + 64;
  }
  double scale(const Operand& q, int64_t row, int64_t i) const {
    if (format == kInt8) return load_as(0, q.bytes.data() + scales + 4 * row);
    return load_as(1, q.bytes.data() + scales + 2 * (row * groups + i / group));
  }
  double element(const Operand& q, int64_t row, int64_t i) const {
    const std::byte* at = q.bytes.data() + row * codes;
    if (format == kInt8) return static_cast<int8_t>(at[i]) * scale(q, row, i);
    uint16_t word;
    std::memcpy(&word, at + i / 32 * 16 + i % 8 * 2, 2);
    double zero = 8;
    if (format == kInt4Asymmetric) {
      zero = std::to_integer<int>(q.bytes[static_cast<size_t>(zeros + row * groups + i / group)]) /
             16.0;
    }
    return ((word >> (i % 32 / 8 * 4) & 15) - zero) * scale(q, row, i);
  }
};

Operand gaussian_operand(int32_t dtype, int64_t count, double shift, std::mt19937& random) {
  std::normal_distribution<float> normal(static_cast<float>(shift), 1);
  Operand out = random_operand(dtype, count, random);
  for (int64_t i = 0; i < count; ++i) {
    const float x = 0.05F * normal(random);
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const auto half = static_cast<uint16_t>(bits >> 16);
    if (dtype == 0) std::memcpy(out.bytes.data() + 4 * i, &x, 4);
    if (dtype == 2) std::memcpy(out.bytes.data() + 2 * i, &half, 2);
  }
  return out;
}

std::string describe(const TestedIsa& isa, const abi::QuantizeParams& p) {
  return std::string(isa.name) + " quantize format " + std::to_string(p.format) + " group " +
         std::to_string(p.group) + " rows " + std::to_string(p.rows) + " k " + std::to_string(p.k) +
         " dtype " + std::to_string(p.x_dtype);
}

Operand quantized(const TestedIsa& isa, const abi::QuantizeParams& p, const Operand& w,
                  std::mt19937& random) {
  std::vector<Operand> operands{w, {}};
  operands[1].bytes.resize(static_cast<size_t>(Stored(p).bytes));
  run_kernel(isa["quantize"], p, operands, random);
  return operands[1];
}

// Squared errors of a group, as stored and as plain rounding over the whole range would have it.
struct Errors {
  double stored = 0, plain = 0;
};

Errors errors_of(const abi::QuantizeParams& p, const Stored& layout, const Operand& q,
                 const std::vector<double>& w, int64_t row, int64_t begin) {
  const int64_t end = std::min(begin + layout.group, p.k);
  double low = 0, high = 0;
  for (int64_t i = begin; i < end; ++i) {
    low = std::min(low, w[static_cast<size_t>(row * p.ldw + i)]);
    high = std::max(high, w[static_cast<size_t>(row * p.ldw + i)]);
  }
  const double most = std::max(-low, high);
  double scale = most / 127, zero = 0, least = -127, last = 127;
  if (p.format == kInt4) {
    scale = (-low > high ? low : high) / -8;
    least = -8;
    last = 7;
  } else if (p.format == kInt4Asymmetric) {
    scale = (high - low) / 15;
    zero = scale > 0 ? std::round(-low / scale) : 0;
    least = 0;
    last = 15;
  }
  Errors e;
  for (int64_t i = begin; i < end; ++i) {
    const double x = w[static_cast<size_t>(row * p.ldw + i)];
    const double code =
        scale != 0 ? std::clamp(std::nearbyint(x / scale + zero), least, last) - zero : 0;
    e.plain += (x - code * scale) * (x - code * scale);
    const double is = layout.element(q, row, i);
    e.stored += (x - is) * (x - is);
  }
  return e;
}

void test_quantize(const TestedIsa& isa, abi::QuantizeParams p, double shift,
                   std::mt19937& random) {
  const Operand w = gaussian_operand(p.x_dtype, (p.rows - 1) * p.ldw + p.k, shift, random);
  const Stored layout(p);
  const Operand q = quantized(isa, p, w, random);
  const std::vector<double> values = values_of(w, p.x_dtype);
  Errors total;
  for (int64_t row = 0; row < p.rows; ++row) {
    for (int64_t i = 0; i < p.k; i += layout.group) {
      const Errors e = errors_of(p, layout, q, values, row, i);
      total.stored += e.stored;
      total.plain += e.plain;
    }
    for (int64_t i = p.k; p.format == kInt8 && i < layout.k; ++i) {
      expect(layout.element(q, row, i) == 0, describe(isa, p), "padding is not zero");
    }
  }
  // Rounding a scale to float16 may cost a little; the search gains more.
  expect(total.stored <= total.plain * (p.format == kInt8 ? 1.001 : 0.99), describe(isa, p),
         "the squared error is " + std::to_string(total.stored) + ", plainly rounded " +
             std::to_string(total.plain));
}

abi::QuantizeParams weight(int32_t format, int64_t group, int64_t rows, int64_t k, int32_t dtype) {
  abi::QuantizeParams p{};
  p.format = format;
  p.group = group;
  p.rows = rows;
  p.k = p.ldw = k;
  p.x_dtype = dtype;
  return p;
}

struct Kind {
  int32_t format;
  int64_t group;
};
constexpr Kind kKinds[] = {{kInt8, 0},   {kInt4, 32},           {kInt4, 64},
                           {kInt4, 128}, {kInt4Asymmetric, 32}, {kInt4Asymmetric, 128}};

void test_weights(const TestedIsa& isa, std::mt19937& random) {
  for (const Kind kind : kKinds) {
    for (const int32_t dtype : {0, 2}) {
      for (const int64_t k : {256, 1000, 1537}) {
        abi::QuantizeParams p = weight(kind.format, kind.group, 37, k, dtype);
        test_quantize(isa, p, 0, random);
        p.ldw += 3;
        test_quantize(isa, p, 0.5, random);
      }
    }
  }
  test_quantize(isa, weight(kInt4, 32, 700, 640, 2), 0, random);  // several tasks
}

// Groups with nothing to scale, with one value, and beyond what a float16 can scale.
void test_extremes(const TestedIsa& isa, std::mt19937& random) {
  for (const Kind kind : kKinds) {
    const abi::QuantizeParams p = weight(kind.format, kind.group, 4, 128, 0);
    Operand w = random_operand(0, 4 * 128, random);
    const float rows[] = {0, -3, 7.5F, 1e-9F};
    for (int64_t i = 0; i < 4 * 128; ++i) std::memcpy(&w.bytes[size_t(4 * i)], rows + i / 128, 4);
    const Operand q = quantized(isa, p, w, random);
    const Stored layout(p);
    for (int64_t i = 0; i < 4 * 128; ++i) {
      const double want = rows[i / 128], got = layout.element(q, i / 128, i % 128);
      expect(std::abs(got - want) <= 1e-3 * std::abs(want) + 1e-8, describe(isa, p),
             "a constant row of " + std::to_string(want) + " became " + std::to_string(got));
    }
  }
}

std::string describe(const TestedIsa& isa, const abi::QuantizedLinearParams& p) {
  return std::string(isa.name) + " quantized_linear m=" + std::to_string(p.m) +
         " n=" + std::to_string(p.n) + " k=" + std::to_string(p.k) + " format " +
         std::to_string(p.format) + " group " + std::to_string(p.group) + " segments " +
         std::to_string(p.segments) + " gated " + std::to_string(p.gated) + " dtypes " +
         std::to_string(p.x_dtype) + std::to_string(p.y_dtype) + std::to_string(p.r_dtype) +
         " residual " + std::to_string(p.residual) + " act " + std::to_string(p.act);
}

abi::QuantizedLinearParams plain(Kind kind, int64_t m, int64_t n, int64_t k) {
  abi::QuantizedLinearParams p{};
  p.format = kind.format;
  p.group = kind.group;
  p.m = m;
  p.n = n;
  p.k = p.ldx = k;
  p.ldy = p.ldr = n;
  p.segments = 1;
  p.rows[0] = n;
  return p;
}

std::vector<Operand> operands_for(const TestedIsa& isa, const abi::QuantizedLinearParams& p,
                                  std::vector<double>* decoded, std::mt19937& random) {
  std::vector<Operand> operands{random_operand(p.x_dtype, (p.m - 1) * p.ldx + p.k, random)};
  for (int i = 0; i < p.segments; ++i) {
    const abi::QuantizeParams w = weight(p.format, p.group, p.rows[i], p.k, 0);
    operands.push_back(quantized(isa, w, random_operand(0, w.rows * w.k, random), random));
    for (int64_t row = 0; row < w.rows; ++row) {
      for (int64_t k = 0; k < w.k; ++k)
        decoded->push_back(Stored(w).element(operands.back(), row, k));
    }
  }
  if (p.has_bias) operands.push_back(random_operand(0, p.n * (p.gated ? 2 : 1), random));
  if (p.residual) {
    operands.push_back(random_operand(p.r_dtype, (p.m - 1) * p.ldr + p.n, random));
  }
  operands.push_back(random_operand(p.y_dtype, (p.m - 1) * p.ldy + p.n, random));
  return operands;
}

void test_product(const TestedIsa& isa, const abi::QuantizedLinearParams& p, std::mt19937& random) {
  std::vector<double> w;
  std::vector<Operand> operands = operands_for(isa, p, &w, random);
  const std::vector<double> before = values_of(operands.back(), p.y_dtype);
  run_kernel(isa["quantized_linear"], p, operands, random);
  const std::vector<double> x = values_of(operands[0], p.x_dtype);
  const auto at = static_cast<size_t>(1 + p.segments);
  const std::vector<double> bias = p.has_bias ? values_of(operands[at], 0) : std::vector<double>{};
  const std::vector<double> residual =
      p.residual ? values_of(operands[operands.size() - 2], p.r_dtype) : std::vector<double>{};
  const std::vector<double> y = values_of(operands.back(), p.y_dtype);
  const auto sum_of = [&](int64_t m, int64_t row) {
    double sum = p.has_bias ? bias[static_cast<size_t>(row)] : 0;
    for (int64_t k = 0; k < p.k; ++k) {
      sum += x[static_cast<size_t>(m * p.ldx + k)] * w[static_cast<size_t>(row * p.k + k)];
    }
    return sum;
  };
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      double sum = sum_of(m, n);
      const double r = p.residual ? residual[static_cast<size_t>(m * p.ldr + n)] : 0;
      if (p.residual == 1) sum += r;
      sum = reference_activation(static_cast<abi::Opcode>(p.act), sum, p.act_lo, p.act_hi);
      if (p.residual == 2) sum += r;
      const double up = p.gated ? sum_of(m, p.n + n) : 1;
      // Few rows of x are rounded to 15 bits of their group's largest element. For many, elements
      // of the weight may be rounded to bfloat16.
      const double rounding = p.m > 16 && p.x_dtype == 2 && p.format != kInt8 ? 4e6 : 2500;
      const double terms =
          static_cast<double>(p.k) * rounding * (1 + up * up + (p.gated ? sum * sum : 0));
      expect_close(y[static_cast<size_t>(m * p.ldy + n)], sum * up, p.y_dtype, terms,
                   describe(isa, p));
    }
    for (int64_t n = p.n; n < p.ldy && m + 1 < p.m; ++n) {  // between the rows: untouched
      const auto i = static_cast<size_t>(m * p.ldy + n);
      expect(y[i] == before[i], describe(isa, p), "wrote beyond the columns of a row");
    }
  }
}

void test_shapes(const TestedIsa& isa, std::mt19937& random) {
  for (const Kind kind : kKinds) {
    for (const int64_t m : {1, 2, 3, 4, 5, 16, 17, 130}) {
      test_product(isa, plain(kind, m, 19, 300), random);
    }
    for (const int32_t dtype : {0, 1, 2}) {  // many rows: several blocks of K
      abi::QuantizedLinearParams p = plain(kind, 18, 37, 1700);
      p.x_dtype = p.y_dtype = dtype;
      test_product(isa, p, random);
    }
    for (const int64_t k : {0, 1, 31, 128, 129, 1280, 2049}) {
      test_product(isa, plain(kind, 2, 33, k), random);
    }
    test_product(isa, plain(kind, 1, 1500, 512), random);  // several tasks
  }
}

// A row has the same bits alone and among any others, wherever it is.
void test_company(const TestedIsa& isa, std::mt19937& random) {
  for (const Kind kind : kKinds) {
    std::vector<double> decoded;
    const abi::QuantizedLinearParams most = plain(kind, 35, 21, 1700);
    const std::vector<Operand> all = operands_for(isa, most, &decoded, random);
    const auto row_bytes = static_cast<std::ptrdiff_t>(all[0].bytes.size()) / most.m;
    std::vector<std::vector<double>> alone;
    const auto products = [&](int64_t first, int64_t rows) {
      const abi::QuantizedLinearParams p = plain(kind, rows, 21, 1700);
      std::vector<Operand> some = all;
      const auto from = all[0].bytes.begin() + first * row_bytes;
      some[0].bytes.assign(from, from + rows * row_bytes);
      some.back().bytes.resize(all.back().bytes.size() / static_cast<size_t>(most.m) *
                               static_cast<size_t>(rows));
      run_kernel(isa["quantized_linear"], p, some, random);
      return values_of(some.back(), p.y_dtype);
    };
    for (int64_t row = 0; row < most.m; ++row) alone.push_back(products(row, 1));
    for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 34}) {
      const std::vector<double> found = products(1, rows);
      for (int64_t i = 0; i < rows * 21; ++i) {
        const double expected = alone[static_cast<size_t>(1 + i / 21)][static_cast<size_t>(i % 21)];
        expect(found[static_cast<size_t>(i)] == expected,
               describe(isa, plain(kind, rows, 21, 1700)), "a row differs from the same one alone");
      }
    }
  }
}

void test_random(const TestedIsa& isa, std::mt19937& random) {
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  for (int i = 0; i < 200; ++i) {
    const Kind kind = kKinds[below(std::size(kKinds))];
    abi::QuantizedLinearParams p =
        plain(kind, 1 + below(i % 2 ? 20 : 40), 1 + below(70), 1 + below(300));
    p.ldx += below(5);
    p.ldy += below(5);
    p.ldr += below(5);
    p.gated = below(2);
    p.segments = 1 + below(std::min<int>(4, static_cast<int>(p.n)));
    int64_t left = p.n * (p.gated ? 2 : 1);
    for (int s = 0; s + 1 < p.segments; ++s) {
      p.rows[s] = below(static_cast<int>(left - (p.segments - 1 - s))) + 1;
      left -= p.rows[s];
    }
    p.rows[p.segments - 1] = left;
    p.x_dtype = below(3);
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

// What a task computes does not depend on which tasks a worker was given with it.
void test_ranges(const TestedIsa& isa, std::mt19937& random) {
  for (const Kind kind : kKinds) {
    const abi::QuantizedLinearParams p = plain(kind, 3, 1200, 640);
    std::vector<double> decoded;
    std::vector<Operand> operands = operands_for(isa, p, &decoded, random);
    run_kernel(isa["quantized_linear"], p, operands, random);
    std::vector<Operand> whole = operands;
    const KernelEntry& kernel = isa["quantized_linear"];
    std::vector<std::byte> scratch(static_cast<size_t>(kernel.scratch(&p)) + 64);
    const size_t skip = 64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64;
    std::vector<void*> pointers;
    for (Operand& o : whole) pointers.push_back(o.bytes.data());
    NoFailure failure;
    kernel.run({&p, pointers.data(), 0, kernel.tasks(&p, 2), scratch.data() + skip, &failure});
    expect(whole.back().bytes == operands.back().bytes, describe(isa, p),
           "gave other results for all tasks at once");
  }
}

void test_nan(const TestedIsa& isa, std::mt19937& random) {
  for (const Kind kind : kKinds) {
    for (const float value : {NAN, INFINITY}) {
      const abi::QuantizedLinearParams p = plain(kind, 2, 20, 200);
      std::vector<double> decoded;
      std::vector<Operand> operands = operands_for(isa, p, &decoded, random);
      std::memcpy(operands[0].bytes.data(), &value, 4);
      run_kernel(isa["quantized_linear"], p, operands, random);
      const std::vector<double> y = values_of(operands.back(), 0);
      for (size_t n = 0; n < 20; ++n) {
        expect(!std::isfinite(y[n]), describe(isa, p), "lost a NaN or an infinity");
        expect(std::isfinite(y[20 + n]), describe(isa, p), "spread a NaN to another row");
      }
    }
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const abi::QuantizedLinearParams good = plain({kInt4, 32}, 4, 16, 128);
  std::vector<double> decoded;
  const std::vector<Operand> operands = operands_for(isa, good, &decoded, random);
  const KernelEntry& kernel = isa["quantized_linear"];
  expect(refusal(kernel, good, operands).empty(), isa.name, "refused a sound product");
  const auto refuses = [&](const char* what, auto&& change) {
    abi::QuantizedLinearParams p = good;
    change(p);
    expect(!refusal(kernel, p, operands).empty(), isa.name, std::string("accepted ") + what);
  };
  refuses("a row of x too many", [](auto& p) { p.m = 5; });
  refuses("a row of the weight too many", [](auto& p) { p.n = p.rows[0] = 17; });
  refuses("more columns than rows of the weight", [](auto& p) { p.n = 17; });
  refuses("a longer K", [](auto& p) { p.k = 129; });
  refuses("a wider format", [](auto& p) { p.format = kInt8; });
  refuses("zero points that are not there", [](auto& p) { p.format = kInt4Asymmetric; });
  refuses("an unknown format", [](auto& p) { p.format = 4; });
  refuses("an unknown group", [](auto& p) { p.group = 48; });
  refuses("a negative size", [](auto& p) { p.m = -1; });
  refuses("a huge size", [](auto& p) { p.k = INT64_MAX; });
  refuses("no segment", [](auto& p) { p.segments = 0; });
  refuses("five segments", [](auto& p) { p.segments = 5; });
  refuses("a negative segment", [](auto& p) {
    p.segments = 2;
    p.rows[1] = -1;
  });
  refuses("a gate without its rows", [](auto& p) { p.gated = 1; });
  refuses("a gate with a residual", [](auto& p) { p.gated = p.residual = 1; });
  refuses("a stride before the operand", [](auto& p) { p.ldx = -8; });
  refuses("an unknown dtype", [](auto& p) { p.y_dtype = 77; });
  refuses("an unknown activation", [](auto& p) { p.act = 1000; });
  refuses("an operand that is not there", [](auto& p) { p.has_bias = 1; });

  const abi::QuantizeParams w = weight(kInt4, 32, 16, 128, 0);
  std::vector<Operand> stored{random_operand(0, 16 * 128, random), operands[1]};
  expect(refusal(isa["quantize"], w, stored).empty(), isa.name, "refused a sound weight");
  const auto refuses_weight = [&](const char* what, auto&& change) {
    abi::QuantizeParams p = w;
    change(p);
    expect(!refusal(isa["quantize"], p, stored).empty(), isa.name, std::string("accepted ") + what);
  };
  refuses_weight("a row too many", [](auto& p) { p.rows = 17; });
  refuses_weight("a longer row", [](auto& p) { p.k = 129; });
  refuses_weight("a wider format", [](auto& p) { p.format = kInt8; });
  refuses_weight("a double", [](auto& p) { p.x_dtype = 3; });
  refuses_weight("an unknown group", [](auto& p) { p.group = 0; });
  refuses_weight("a stride beyond the weight", [](auto& p) { p.ldw = 130; });
}

// Whatever the bytes say, check() refuses or the run stays in bounds (sanitizers watch).
void test_arbitrary_bytes(const TestedIsa& isa, std::mt19937& random) {
  std::vector<double> decoded;
  const auto mutate = [&](auto& p) {
    auto* bytes = reinterpret_cast<unsigned char*>(&p);
    for (int j = 0; j < 2; ++j) bytes[random() % sizeof p] = static_cast<unsigned char>(random());
  };
  std::vector<Operand> operands =
      operands_for(isa, plain({kInt4, 32}, 4, 16, 128), &decoded, random);
  for (int i = 0; i < 5000; ++i) {
    abi::QuantizedLinearParams p = plain({kInt4, 32}, 4, 16, 128);
    mutate(p);
    if (refusal(isa["quantized_linear"], p, operands).empty()) {
      run_kernel(isa["quantized_linear"], p, operands, random);
    }
    abi::QuantizeParams w = weight(kInt4, 32, 16, 128, 0);
    mutate(w);
    std::vector<Operand> stored{random_operand(0, 16 * 128, random), operands[1]};
    if (refusal(isa["quantize"], w, stored).empty()) {
      run_kernel(isa["quantize"], w, stored, random);
    }
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  std::mt19937 random(1);
  for (const npusim::cpu::TestedIsa& isa : npusim::cpu::isas({"quantize", "quantized_linear"})) {
    npusim::cpu::test_weights(isa, random);
    npusim::cpu::test_extremes(isa, random);
    npusim::cpu::test_shapes(isa, random);
    npusim::cpu::test_company(isa, random);
    npusim::cpu::test_random(isa, random);
    npusim::cpu::test_ranges(isa, random);
    npusim::cpu::test_nan(isa, random);
    npusim::cpu::test_refusals(isa, random);
    npusim::cpu::test_arbitrary_bytes(isa, random);
    std::printf("quantized_linear on %s: ok\n", isa.name);
  }
}
