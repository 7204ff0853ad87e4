// scan and sort against plain loops and std::stable_sort, on every instruction set of this machine:
// every dtype, NaN and infinities, ties and signed zeros, any k; the refusals; and mutated
// parameters.
#include <limits>
#include <numeric>

#include "tests/cpp/mutation.h"
#include "tests/cpp/strided.h"

namespace npusim::cpu {
namespace {

enum Scan { kSum, kProd, kMax, kMin, kLogSumExp };

Layout line(int64_t n) {
  Layout out;
  out.rank = 1;
  out.shape[0] = n;
  out.strides[0] = 1;
  return out;
}

void put(Operand& operand, size_t i, float value) {
  std::memcpy(operand.bytes.data() + 4 * i, &value, 4);
}

// Puts values that have no place of their own in the order of numbers into a float32 operand.
void put_specials(Operand& operand, std::mt19937& random) {
  const float specials[] = {std::nanf(""), INFINITY, -INFINITY, -0.0F, 0.0F, std::nanf("")};
  const size_t n = operand.bytes.size() / 4;
  for (const float value : specials) put(operand, random() % n, value);
}

// ---- scan

double combine(int op, double a, double x) {
  switch (op) {
    case kSum:
      return a + x;
    case kProd:
      return a * x;
    case kMax:
      return std::isnan(a) || a > x ? a : x;
    case kMin:
      return std::isnan(a) || a < x ? a : x;
    default: {
      if (std::isnan(a) || std::isnan(x)) return a + x;
      const double high = std::max(a, x);
      return std::isinf(high) ? high : high + std::log(std::exp(a - high) + std::exp(x - high));
    }
  }
}

void check_scan(const KernelEntry& kernel, const abi::ScanParams& p, std::vector<Operand>& operands,
                std::mt19937& random) {
  const auto x = numbers_of(operands[0], p.x_dtype);
  run_kernel(kernel, p, operands, random);
  const auto y = numbers_of(operands[1], p.y_dtype);
  const double rounding = p.y_dtype == 0 ? 1e-6 : p.y_dtype == 1 ? 1e-3 : p.y_dtype == 2 ? 8e-3 : 0;
  for (int64_t lane = 0; lane < p.outer * p.inner; ++lane) {
    const int64_t first = lane / p.inner * p.size * p.inner + lane % p.inner;
    double state = 0;
    for (int64_t s = 0; s < p.size; ++s) {
      const auto at = static_cast<size_t>(first + s * p.inner);
      double value = x[at];
      if (p.y_dtype > 3) value = std::trunc(value);
      state = s == 0 ? value : combine(p.op, state, value);
      const double want = p.y_dtype > 3 ? wrap(state, p.y_dtype) : state;
      const bool same = std::isnan(want) ? std::isnan(y[at])
                        : std::isinf(want)
                            ? y[at] == want
                            : std::abs(y[at] - want) <= rounding * (1 + std::abs(want)) + 1e-12;
      if (same) continue;
      fail("scan " + std::to_string(p.op), std::to_string(y[at]) + ", not " + std::to_string(want));
    }
  }
}

abi::ScanParams random_scan(std::mt19937& random) {
  abi::ScanParams p = {};
  p.outer = pick(random, 1, 5);
  p.size = pick(random, 1, random() % 3 ? 30 : 500);
  p.inner = random() % 2 ? 1 : pick(random, 2, 140);
  p.op = static_cast<int32_t>(random() % 5);
  p.x_dtype = static_cast<int32_t>(random() % 2 ? 0 : random() % 10);
  p.y_dtype = p.x_dtype > 3 ? (p.op == kLogSumExp ? 0 : 4) : p.x_dtype;
  // Products of many whole numbers leave the range in which doubles tell them apart.
  if (p.op == kProd) p.size = pick(random, 1, p.x_dtype > 3 ? 8 : 20);
  return p;
}

void test_scan(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 400; ++i) {
    const abi::ScanParams p = random_scan(random);
    const Layout all = line(p.outer * p.size * p.inner);
    std::vector<Operand> operands = {operand_of(all, p.x_dtype, random),
                                     operand_of(all, p.y_dtype, random)};
    if (p.x_dtype == 0 && i % 3 == 0) put_specials(operands[0], random);
    if (p.x_dtype == 1 && p.op == kSum) continue;  // sums of float16 leave their range
    check_scan(isa["scan"], p, operands, random);
    if (all.count() < 2000) run_mutations(isa["scan"], p, operands, 20, random);
  }
}

// ---- sort

bool comes_first(double a, double b, bool descending) {
  if (descending) std::swap(a, b);
  return std::isnan(b) ? !std::isnan(a) : a < b;
}

void check_sort(const KernelEntry& kernel, const abi::SortParams& p, std::vector<Operand>& operands,
                std::mt19937& random) {
  const auto x = numbers_of(operands[0], p.dtype);
  run_kernel(kernel, p, operands, random);
  const auto values = numbers_of(operands[1], p.dtype);
  const auto indices = numbers_of(operands[2], 4);
  for (int64_t lane = 0; lane < p.outer * p.inner; ++lane) {
    const auto at = [&](int64_t size, int64_t s) {
      return static_cast<size_t>((lane / p.inner * size + s) * p.inner + lane % p.inner);
    };
    std::vector<int64_t> order(static_cast<size_t>(p.size));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return comes_first(x[at(p.size, a)], x[at(p.size, b)], p.descending != 0);
    });
    for (int64_t i = 0; i < p.k; ++i) {
      const int64_t want = order[static_cast<size_t>(i)];
      expect(indices[at(p.k, i)] == static_cast<double>(want), "sort", "a wrong index");
      const double value = x[at(p.size, want)], got = values[at(p.k, i)];
      const bool same = std::isnan(value)
                            ? std::isnan(got)
                            : got == value && std::signbit(got) == std::signbit(value);
      expect(same, "sort", "a wrong value");
    }
  }
}

void test_sort(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 400; ++i) {
    abi::SortParams p = {};
    p.outer = pick(random, 1, 4);
    p.size = pick(random, 1, random() % 3 ? 40 : 3000);
    p.inner = random() % 2 ? 1 : pick(random, 2, 5);
    p.k = random() % 2 ? p.size : pick(random, 0, random() % 2 ? p.size : (p.size + 7) / 8);
    p.descending = static_cast<int32_t>(random() % 2);
    p.dtype = static_cast<int32_t>(random() % 10);
    const Layout in = line(p.outer * p.size * p.inner), out = line(p.outer * p.k * p.inner);
    std::vector<Operand> operands = {operand_of(in, p.dtype, random),
                                     operand_of(out, p.dtype, random), operand_of(out, 4, random)};
    if (p.dtype == 0) put_specials(operands[0], random);
    check_sort(isa["sort"], p, operands, random);
    if (in.count() < 500) run_mutations(isa["sort"], p, operands, 20, random);
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const std::vector<Operand> three = {operand_of(line(60), 0, random),
                                      operand_of(line(60), 0, random),
                                      operand_of(line(60), 4, random)};
  auto sort_refused = [&](abi::SortParams p, const char* what) {
    expect(!refusal(isa["sort"], p, three).empty(), "sort accepts", what);
  };
  expect(refusal(isa["sort"], abi::SortParams{2, 30, 1, 30, 0, 0}, three).empty(), "sort", "no");
  sort_refused({2, 31, 1, 30, 0, 0}, "elements past the end");
  sort_refused({2, 30, 1, 31, 0, 0}, "k beyond the size");
  sort_refused({2, 30, 1, -1, 0, 0}, "a negative k");
  sort_refused({2, 30, 1, 30, 2, 0}, "a flag of 2");
  sort_refused({2, 30, 1, 30, 0, 3}, "doubles where there are floats");
  const std::vector<Operand> two = {three[0], three[1]};
  auto scan_refused = [&](abi::ScanParams p, const char* what) {
    expect(!refusal(isa["scan"], p, two).empty(), "scan accepts", what);
  };
  expect(refusal(isa["scan"], abi::ScanParams{2, 30, 1, 0, 0, 0}, two).empty(), "scan", "no");
  scan_refused({2, 30, 2, 0, 0, 0}, "elements past the end");
  scan_refused({2, 30, 1, 5, 0, 0}, "an operation that does not exist");
  scan_refused({2, 30, 1, 4, 0, 5}, "log-sum-exp of integers");
  scan_refused({-2, -30, 1, 0, 0, 0}, "negative sizes");
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"scan", "sort"})) {
    std::mt19937 random(5);
    test_scan(isa, random);
    test_sort(isa, random);
    test_refusals(isa, random);
    std::printf("%s: scan and sort agree\n", isa.name);
  }
}
