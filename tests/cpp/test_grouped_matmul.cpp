// grouped_matmul against plain sums, on every instruction set of this machine: groups of none, one
// and many rows, rows after the last offset, offsets that go back or outside, both ways that a
// matrix may lie, all dtypes; the refusals; and mutated parameters, which check() must refuse or
// which must then run inside their operands.
#include "tests/cpp/kernel_call.h"
#include "tests/cpp/mutation.h"
#include "tests/cpp/typed_operand.h"

namespace npusim::cpu {
namespace {

using Params = abi::MatmulParams;

int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

struct Case {
  Params p{};
  std::vector<int32_t> offsets;
  std::vector<Operand> operands;
};

std::string describe(const TestedIsa& isa, const Params& p) {
  return std::string(isa.name) + " grouped_matmul groups " + std::to_string(p.batch[5]) + " m " +
         std::to_string(p.m) + " n " + std::to_string(p.n) + " k " + std::to_string(p.k) + " b " +
         std::to_string(p.b_k) + "," + std::to_string(p.b_n) + " dtype " + std::to_string(p.dtype);
}

Operand bytes_of(const std::vector<int32_t>& numbers) {
  Operand operand;
  operand.bytes.resize(numbers.size() * sizeof(int32_t));
  if (!numbers.empty()) std::memcpy(operand.bytes.data(), numbers.data(), operand.bytes.size());
  return operand;
}

Case random_case(std::mt19937& random, bool orderly) {
  constexpr int64_t kSizes[] = {1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 100};
  Case c;
  Params& p = c.p;
  for (int64_t& n : p.batch) n = 1;
  p.batch[5] = pick(random, 0, 5);
  p.m = random() % 4 ? kSizes[random() % std::size(kSizes)] : 180 + pick(random, 0, 30);
  p.n = random() % 4 ? kSizes[random() % std::size(kSizes)] : 256 + pick(random, 0, 30);
  p.k = random() % 4 ? kSizes[random() % std::size(kSizes)] : 260;
  p.a_m = p.k + pick(random, 0, 1), p.a_k = 1;
  const bool turned = random() % 2;
  p.b_k = turned ? 1 : p.n + pick(random, 0, 1);
  p.b_n = turned ? p.k + pick(random, 0, 1) : 1;
  p.b_batch[5] = p.k * p.b_k + p.n * p.b_n;
  p.y_m = p.n + pick(random, 0, 2);
  p.dtype = random() % 2 ? 0 : static_cast<int32_t>(random() % 10);
  p.alpha = random() % 3 ? 1.0F : 2.0F;
  for (int64_t g = 0; g < p.batch[5]; ++g) {
    c.offsets.push_back(
        static_cast<int32_t>(pick(random, orderly ? 0 : -9, p.m + (orderly ? 0 : 9))));
  }
  if (orderly) std::sort(c.offsets.begin(), c.offsets.end());
  c.operands = {typed_operand(p.dtype, p.m * p.a_m, random),
                typed_operand(p.dtype, std::max<int64_t>(1, p.batch[5]) * p.b_batch[5], random),
                bytes_of(c.offsets), typed_operand(p.dtype, p.m * p.y_m, random)};
  return c;
}

// The first group that ends after the row, or -1.
int64_t group_of(const Case& c, int64_t row) {
  for (size_t g = 0; g < c.offsets.size(); ++g) {
    if (c.offsets[g] > row) return static_cast<int64_t>(g);
  }
  return -1;
}

void test_case(const TestedIsa& isa, Case c, std::mt19937& random) {
  const Params& p = c.p;
  const std::vector<double> a = numbers_of(c.operands[0], p.dtype);
  const std::vector<double> b = numbers_of(c.operands[1], p.dtype);
  run_kernel(isa["grouped_matmul"], p, c.operands, random);
  const std::vector<double> y = numbers_of(c.operands[3], p.dtype);
  for (int64_t row = 0; row < p.m; ++row) {
    const int64_t group = group_of(c, row);
    for (int64_t column = 0; column < p.n; ++column) {
      double want = 0;
      for (int64_t k = 0; group >= 0 && k < p.k; ++k) {
        const int64_t at = group * p.b_batch[5] + k * p.b_k + column * p.b_n;
        want += a[static_cast<size_t>(row * p.a_m + k)] * b[static_cast<size_t>(at)];
      }
      want *= static_cast<double>(p.alpha);
      const double got = y[static_cast<size_t>(row * p.y_m + column)];
      if (p.dtype <= 2) {
        expect_close(got, want, p.dtype, static_cast<double>(p.k) * 9, describe(isa, p));
      } else {
        expect(got == wrap(want, p.dtype), describe(isa, p), "got " + std::to_string(got));
      }
    }
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  Case c = random_case(random, true);
  while (c.p.batch[5] < 2 || c.p.m < 2 || c.p.dtype != 0 || c.p.y_m != c.p.n) {
    c = random_case(random, true);
  }
  const KernelEntry& kernel = isa["grouped_matmul"];
  expect(refusal(kernel, c.p, c.operands).empty(), "grouped_matmul", "a sound case was refused");
  const auto refused = [&](auto&& spoil, const char* what) {
    Params bad = c.p;
    spoil(bad);
    const bool found = !refusal(kernel, bad, c.operands).empty();
    expect(found, "grouped_matmul", std::string("accepted ") + what);
  };
  refused([](Params& p) { ++p.m; }, "a row too many");
  refused([](Params& p) { ++p.batch[5]; }, "a group too many");
  refused([](Params& p) { p.batch[0] = 2; }, "a batch beside the groups");
  refused([](Params& p) { p.batch[5] = -1; }, "a negative number of groups");
  refused([](Params& p) { p.n = -1; }, "negative columns");
  refused([](Params& p) { p.y_m = 0; }, "rows that share an output");
  refused([](Params& p) { p.b_batch[5] = INT64_MAX / 2; }, "groups far apart");
  refused([](Params& p) { p.dtype = 10; }, "an unknown dtype");
  c.operands[2].bytes.pop_back();
  refused([](Params&) {}, "offsets that end early");
  c.operands.pop_back();
  refused([](Params&) {}, "a missing operand");
}

bool too_long(const Params& p) {
  double work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  return work > 1e8;
}

void test_isa(const TestedIsa& isa) {
  std::mt19937 random(23);
  for (int i = 0; i < 150; ++i) test_case(isa, random_case(random, i % 3 != 0), random);
  test_refusals(isa, random);
  for (int i = 0; i < 30; ++i) {
    const Case c = random_case(random, false);
    run_mutations(isa["grouped_matmul"], c.p, c.operands, 60, random, too_long);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"grouped_matmul"})) test_isa(isa);
}
