// reduce against loops over every element, on every instruction set of this machine: all
// reductions, dtypes, kept and reduced dimensions in any place, strides of every kind; NaN,
// infinities, ties, nothing to reduce; rows among others as alone; the accuracy of long sums; the
// refusals; and mutated parameters.
#include <limits>

#include "tests/cpp/mutation.h"
#include "tests/cpp/strided.h"

namespace npusim::cpu {
namespace {

using Params = abi::ReduceParams;
enum Op {
  kSum,
  kMean,
  kMax,
  kMin,
  kProd,
  kAny,
  kAll,
  kArgmax,
  kArgmin,
  kVar,
  kStd,
  kSumSquares,
  kL2Norm,
  kSumMagnitudes,
  kLogSumExp,
  kOps
};
constexpr double kInf = std::numeric_limits<double>::infinity();

bool better(double a, double b, bool largest) {
  if (std::isnan(b)) return false;
  return std::isnan(a) || (largest ? a > b : a < b);
}

double extreme(const std::vector<double>& x, bool largest, bool position) {
  double best = largest ? -kInf : kInf;
  size_t at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i != 0 && !better(x[i], best, largest)) continue;
    best = x[i];
    at = i;
  }
  return position ? static_cast<double>(at) : best;
}

double reference(int op, const std::vector<double>& x, double correction) {
  const auto n = static_cast<double>(x.size());
  const auto sum = [&](auto f) {
    double total = 0;
    for (const double v : x) total += f(v);
    return total;
  };
  const auto itself = [](double v) { return v; };
  const double squares =
      op == kSumSquares || op == kL2Norm ? sum([](double v) { return v * v; }) : 0;
  switch (op) {
    case kSum:
      return sum(itself);
    case kMean:
      return sum(itself) / n;
    case kMax:
    case kMin:
      return extreme(x, op == kMax, false);
    case kProd: {
      double product = 1;
      for (const double v : x) product *= v;
      return product;
    }
    case kAny:
      return sum([](double v) { return v != 0; }) > 0;
    case kAll:
      return sum([](double v) { return v == 0; }) == 0;
    case kArgmax:
    case kArgmin:
      return extreme(x, op == kArgmax, true);
    case kVar:
    case kStd: {
      const double mean = sum(itself) / n;
      const double var =
          sum([=](double v) { return (v - mean) * (v - mean); }) / std::max(n - correction, 0.0);
      return op == kVar ? var : std::sqrt(var);
    }
    case kSumSquares:
      return squares;
    case kL2Norm:
      return std::sqrt(squares);
    case kSumMagnitudes:
      return sum([](double v) { return std::abs(v); });
    default: {
      double max = extreme(x, true, false);
      if (std::isinf(max)) max = 0;
      return std::log(sum([=](double v) { return std::exp(v - max); })) + max;
    }
  }
}

struct Case {
  Params p = {};
  Layout x, y;  // x over kept and reduced dimensions, in its own order
  bool is_reduced[abi::kRank] = {};
  std::vector<Operand> operands;
};

// Reduces a random subset of the dimensions of a random tensor.
Case random_case(const Layout& shape, int op, int32_t x_dtype, int32_t y_dtype,
                 std::mt19937& random) {
  Case c;
  c.x = random_layout(shape, kPermuted | kPadded | kFlipped | kBroadcast, random);
  c.p.op = op;
  c.p.x_dtype = x_dtype;
  c.p.y_dtype = y_dtype;
  c.p.correction = static_cast<double>(random() % 4) - 1;
  for (int d = 0; d < shape.rank; ++d) {
    c.is_reduced[d] = random() % 2;
    if (c.is_reduced[d]) {
      c.p.reduced[c.p.reduced_rank] = shape.shape[d];
      c.p.reduced_strides[c.p.reduced_rank++] = c.x.strides[d];
    } else {
      c.p.shape[c.p.rank] = shape.shape[d];
      c.y.shape[c.p.rank] = shape.shape[d];
      c.p.x_strides[c.p.rank++] = c.x.strides[d];
    }
  }
  c.y.rank = c.p.rank;
  c.y = random_layout(c.y, kPermuted | kPadded, random);
  std::copy_n(c.y.strides, c.y.rank, c.p.y_strides);
  c.operands = {operand_of(c.x, x_dtype, random), operand_of(c.y, y_dtype, random)};
  return c;
}

// The elements that reduce to each output, in row-major order.
std::vector<std::vector<double>> groups_of(const Case& c) {
  const std::vector<double> x = elements_of(c.operands[0], c.x, c.p.x_dtype);
  std::vector<std::vector<double>> groups(static_cast<size_t>(c.y.count()));
  for (int64_t i = 0; i < c.x.count(); ++i) {
    int64_t out = 0, step = 1, rest = i;
    for (int d = c.x.rank - 1; d >= 0; --d) {
      const int64_t at = rest % c.x.shape[d];
      rest /= c.x.shape[d];
      if (c.is_reduced[d]) continue;
      out += at * step;
      step *= c.x.shape[d];
    }
    groups[static_cast<size_t>(out)].push_back(x[static_cast<size_t>(i)]);
  }
  return groups;
}

// Products of integers wrap; doubles would round them long before.
double wrapped_product(const std::vector<double>& x) {
  uint64_t product = 1;
  for (const double v : x) product *= static_cast<uint64_t>(static_cast<int64_t>(v));
  return static_cast<double>(static_cast<int64_t>(product));
}

void check_case(const KernelEntry& kernel, Case& c, std::mt19937& random) {
  const auto groups = groups_of(c);
  const Operand before = c.operands[1];
  run_kernel(kernel, c.p, c.operands, random);
  const auto y = elements_of(c.operands[1], c.y, c.p.y_dtype);
  for (size_t i = 0; i < y.size(); ++i) {
    double want = reference(c.p.op, groups[i], c.p.correction);
    if (c.p.op == kProd && c.p.y_dtype == 4) want = wrapped_product(groups[i]);
    if (c.p.y_dtype > 3) want = wrap(want, c.p.y_dtype);
    const double rounding = c.p.y_dtype == 1 ? 1e-3 : c.p.y_dtype == 2 ? 8e-3 : 1e-6;
    const bool same = std::isnan(want)   ? std::isnan(y[i])
                      : std::isinf(want) ? y[i] == want
                                         : std::abs(y[i] - want) <= rounding * (1 + std::abs(want));
    if (same) continue;
    fail("reduce " + std::to_string(c.p.op),
         "x dtype " + std::to_string(c.p.x_dtype) + ": " + std::to_string(y[i]) + ", not " +
             std::to_string(want) + " of " + std::to_string(groups[i].size()));
  }
  expect(gaps_untouched(before, c.operands[1], c.y, c.p.y_dtype), "reduce", "a gap was written");
}

bool needs_real(int op) {
  return op == kVar || op == kStd || op == kL2Norm || op == kLogSumExp;
}

int32_t output_dtype(int op, int32_t x_dtype, std::mt19937& random) {
  if (op == kAny || op == kAll) return 9;
  if (op == kArgmax || op == kArgmin) return 4;
  if (x_dtype <= 3) return x_dtype == 3 || random() % 2 ? x_dtype : 0;
  return needs_real(op) || op == kMean ? 0 : 4;
}

void test_random(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 3000; ++i) {
    const int op = static_cast<int>(random() % kOps);
    const auto x_dtype = static_cast<int32_t>(random() % 2 ? 0 : random() % 10);
    Layout shape = random_shape(4, i % 30 ? 3000 : 60000, random);
    // Products of many numbers leave every dtype.
    if (op == kProd) shape = random_shape(3, 12, random);
    Case c = random_case(shape, op, x_dtype, output_dtype(op, x_dtype, random), random);
    check_case(isa["reduce"], c, random);
  }
}

void put(Case& c, size_t i, float value) {
  std::memcpy(c.operands[0].bytes.data() + 4 * i, &value, 4);
}

// One float row reduced to one number.
Case row(int op, int64_t n, std::mt19937& random) {
  Case c;
  c.x.rank = 1;
  c.x.shape[0] = n;
  c.x.strides[0] = 1;
  c.is_reduced[0] = true;
  c.p.op = op;
  c.p.y_dtype = op == kArgmax || op == kArgmin ? 4 : 0;
  c.p.reduced_rank = 1;
  c.p.reduced[0] = n;
  c.p.reduced_strides[0] = 1;
  c.p.correction = 1;
  c.operands = {operand_of(c.x, 0, random), operand_of(c.y, c.p.y_dtype, random)};
  return c;
}

void test_special_values(const TestedIsa& isa, std::mt19937& random) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  for (const int64_t n : {1, 2, 5, 16, 33, 100, 2000}) {
    for (int op = 0; op < kOps; ++op) {
      for (const float special : {nan, inf, -inf}) {
        Case c = row(op, n, random);
        put(c, random() % static_cast<size_t>(n), special);
        if (op != kAny && op != kAll && op != kProd) check_case(isa["reduce"], c, random);
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) put(c, i, special);
        if (op != kAny && op != kAll) check_case(isa["reduce"], c, random);
      }
    }
  }
  for (const int op :
       {kSum, kMean, kProd, kAny, kAll, kVar, kStd, kSumSquares, kL2Norm, kLogSumExp}) {
    Case c = row(op, 0, random);
    check_case(isa["reduce"], c, random);
  }
}

// A row's result is the same bits however many rows there are, short ones walked side by side or
// not.
void test_rows_among_others(const TestedIsa& isa, std::mt19937& random) {
  constexpr int64_t kRows = 300;  // more than a strip
  const float specials[] = {std::nanf(""), INFINITY, -INFINITY, 0.0F, -0.0F};
  for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 33, 100}) {
    for (int op = 0; op < kOps; ++op) {
      Case all = row(op, kRows * n, random);
      for (int64_t i = 0; i < kRows * n; i += 1 + static_cast<int64_t>(random() % 20))
        put(all, static_cast<size_t>(i), specials[random() % 5]);
      all.p.reduced[0] = n;
      all.p.rank = all.y.rank = 1;
      all.p.shape[0] = all.y.shape[0] = kRows;
      all.p.x_strides[0] = n;
      all.p.y_strides[0] = all.y.strides[0] = 1;
      all.operands[1] = operand_of(all.y, all.p.y_dtype, random);
      run_kernel(isa["reduce"], all.p, all.operands, random);
      const auto size = static_cast<size_t>(all.p.y_dtype == 4 ? 8 : 4);
      for (int64_t r = 0; r < kRows; r += 1 + static_cast<int64_t>(random() % 9)) {
        Case one = row(op, n, random);
        const std::byte* x = all.operands[0].bytes.data() + 4 * r * n;
        std::copy_n(x, 4 * n, one.operands[0].bytes.data());
        run_kernel(isa["reduce"], one.p, one.operands, random);
        const std::byte* y = all.operands[1].bytes.data() + static_cast<size_t>(r) * size;
        const double a = values_of(one.operands[1], one.p.y_dtype)[0];
        const bool same = std::memcmp(one.operands[1].bytes.data(), y, size) == 0;
        const bool nan =
            std::isnan(a) &&
            std::isnan(values_of(all.operands[1], one.p.y_dtype)[static_cast<size_t>(r)]);
        expect(same || nan, "reduce " + std::to_string(op),
               "a row of " + std::to_string(n) + " differs among others: " + std::to_string(a));
      }
    }
  }
}

// A million addends of one magnitude: errors of single precision would add up to 1e-4 and more.
void test_accuracy(const TestedIsa& isa, std::mt19937& random) {
  for (const int op : {kSum, kMean, kVar}) {
    Case c = row(op, 1 << 20, random);
    for (size_t i = 0; i < (1u << 20); ++i) put(c, i, 1000.1F + static_cast<float>(i % 7) * 0.01F);
    const auto want = reference(op, groups_of(c)[0], 1);
    run_kernel(isa["reduce"], c.p, c.operands, random);
    const double got = values_of(c.operands[1], 0)[0];
    expect(std::abs(got - want) <= 1e-6 * std::abs(want), "reduce " + std::to_string(op),
           "a long sum gives " + std::to_string(got) + ", not " + std::to_string(want));
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const Case c = row(kSum, 100, random);
  auto refused = [&](auto change, const char* what) {
    Params p = c.p;
    change(p);
    expect(!refusal(isa["reduce"], p, c.operands).empty(), "reduce accepts", what);
  };
  refused([](Params& p) { p.reduced[0] = 101; }, "an element past the end");
  refused([](Params& p) { p.reduced[0] = -1; }, "a negative size");
  refused([](Params& p) { p.op = kOps; }, "a reduction that does not exist");
  refused([](Params& p) { p.x_dtype = 10; }, "a dtype that does not exist");
  refused([](Params& p) { p.reduced_rank = 9; }, "nine dimensions");
  refused([](Params& p) { p.rank = 1, p.shape[0] = 2; }, "more outputs than there is room for");
  refused([](Params& p) { p.correction = -0x1p62; }, "a correction that no count reaches");
}

void test_mutations(const TestedIsa& isa, std::mt19937& random) {
  // A stride of 0 lets a tensor of few bytes have any number of elements.
  const auto too_long = [](const Params& p) {
    double elements = 1;
    for (int d = 0; d < p.rank; ++d) elements *= static_cast<double>(p.shape[d]);
    for (int d = 0; d < p.reduced_rank; ++d) elements *= static_cast<double>(p.reduced[d]);
    return elements > 1e5;
  };
  for (int i = 0; i < 400; ++i) {
    const int op = static_cast<int>(random() % kOps);
    const auto x_dtype = static_cast<int32_t>(random() % 10);
    const Case c = random_case(random_shape(4, 400, random), op, x_dtype,
                               output_dtype(op, x_dtype, random), random);
    run_mutations(isa["reduce"], c.p, c.operands, 40, random, too_long);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"reduce"})) {
    std::mt19937 random(3);
    test_random(isa, random);
    test_special_values(isa, random);
    test_rows_among_others(isa, random);
    test_accuracy(isa, random);
    test_refusals(isa, random);
    test_mutations(isa, random);
    std::printf("%s: reduce agrees\n", isa.name);
  }
}
