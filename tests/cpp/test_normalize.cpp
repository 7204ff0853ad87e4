// softmax, norm and group_norm against loops in double, on every instruction set of this machine:
// every float dtype and float64, sizes about and away from whole vectors, both layouts of group
// norm, activations, parameters present and absent, in-place runs, rows of infinities and NaN, a
// mean much larger than the spread; the refusals; and mutated parameters.
#include <array>
#include <limits>

#include "tests/cpp/mutation.h"
#include "tests/cpp/strided.h"

namespace npusim::cpu {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kSizes[] = {1,  2,  3,   7,   8,   15,  16,   17,  31,
                              33, 64, 100, 128, 197, 768, 1030, 1536};

Layout line(int64_t n) {
  Layout out;
  out.rank = 1;
  out.shape[0] = n;
  out.strides[0] = 1;
  return out;
}

double rounding_of(int32_t dtype) {
  return dtype == 0 ? 2e-6 : dtype == 1 ? 1.5e-3 : dtype == 2 ? 1e-2 : 1e-13;
}
void expect_near(double got, double want, int32_t dtype, const char* where) {
  if (std::isnan(want) ? std::isnan(got) : got == want) return;
  if (std::abs(got - want) <= rounding_of(dtype) * (1 + std::abs(want))) return;
  fail(where, "got " + std::to_string(got) + ", expected " + std::to_string(want));
}

void put(Operand& operand, int32_t dtype, size_t i, double value) {
  const auto narrow = static_cast<float>(value);
  dtype == 3 ? std::memcpy(operand.bytes.data() + 8 * i, &value, 8)
             : std::memcpy(operand.bytes.data() + 4 * i, &narrow, 4);
}

// ---- softmax

void check_softmax(const KernelEntry& kernel, const abi::SoftmaxParams& p,
                   std::vector<Operand>& operands, std::mt19937& random) {
  const auto x = numbers_of(operands[0], p.x_dtype);
  run_kernel(kernel, p, operands, random);
  const auto y = numbers_of(operands[1], p.y_dtype);
  for (int64_t lane = 0; lane < p.outer * p.inner; ++lane) {
    const int64_t first = lane / p.inner * p.size * p.inner + lane % p.inner;
    const auto at = [&](int64_t s) { return static_cast<size_t>(first + s * p.inner); };
    double max = -kInf, total = 0;
    for (int64_t s = 0; s < p.size; ++s) max = std::max(max, x[at(s)]);
    for (int64_t s = 0; s < p.size; ++s) total += std::exp(x[at(s)] - max);
    for (int64_t s = 0; s < p.size; ++s) {
      const double shifted = x[at(s)] - max;
      const double want = p.log ? shifted - std::log(total) : std::exp(shifted) / total;
      expect_near(y[at(s)], want, p.y_dtype, "softmax");
    }
  }
}

void test_softmax(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 250; ++i) {
    abi::SoftmaxParams p = {};
    p.outer = pick(random, 1, 12);
    p.size = kSizes[random() % std::size(kSizes)];
    p.inner = random() % 2 ? 1 : pick(random, 2, 150);
    p.log = static_cast<int32_t>(random() % 2);
    const bool wide = random() % 6 == 0;
    p.x_dtype = wide ? 3 : static_cast<int32_t>(random() % 3);
    p.y_dtype = wide ? 3 : static_cast<int32_t>(random() % 2 ? 0 : random() % 3);
    const Layout all = line(p.outer * p.size * p.inner);
    std::vector<Operand> operands = {operand_of(all, p.x_dtype, random),
                                     operand_of(all, p.y_dtype, random)};
    if (p.x_dtype == 0 || p.x_dtype == 3) {
      const double specials[] = {-kInf, 100, -1000, 0.1};
      put(operands[0], p.x_dtype, random() % static_cast<size_t>(all.count()), specials[i % 4]);
      // A row that is masked as a whole, and one that holds NaN.
      for (int64_t s = 0; i % 5 == 0 && s < p.size; ++s)
        put(operands[0], p.x_dtype, static_cast<size_t>(s * p.inner), -kInf);
      if (i % 7 == 0) put(operands[0], p.x_dtype, 0, std::nan(""));
    }
    check_softmax(isa["softmax"], p, operands, random);
    if (p.outer * p.size * p.inner < 2000) run_mutations(isa["softmax"], p, operands, 20, random);
  }
}

// ---- norm

struct NormCase {
  abi::NormParams p = {};
  std::vector<Operand> operands;
};

NormCase norm_case(std::mt19937& random) {
  NormCase c;
  c.p.kind = static_cast<int32_t>(random() % 2);
  c.p.rows = pick(random, 1, 40);
  c.p.size = kSizes[random() % std::size(kSizes)];
  c.p.x_row_stride = c.p.size + pick(random, 0, 3);
  c.p.y_row_stride = c.p.size + pick(random, 0, 3);
  c.p.eps = 1e-5;
  c.p.has_weight = static_cast<int32_t>(random() % 2);
  c.p.has_bias = static_cast<int32_t>(random() % 2);
  const bool wide = random() % 6 == 0;
  c.p.x_dtype = wide ? 3 : static_cast<int32_t>(random() % 3);
  c.p.w_dtype = wide ? 3 : static_cast<int32_t>(random() % 3);
  c.p.y_dtype = wide ? 3 : static_cast<int32_t>(random() % 3);
  const auto extent = [&](int64_t stride) { return line((c.p.rows - 1) * stride + c.p.size); };
  c.operands.push_back(operand_of(extent(c.p.x_row_stride), c.p.x_dtype, random));
  for (int k = 0; k < c.p.has_weight + c.p.has_bias; ++k)
    c.operands.push_back(operand_of(line(c.p.size), c.p.w_dtype, random));
  c.operands.push_back(operand_of(extent(c.p.y_row_stride), c.p.y_dtype, random));
  return c;
}

void check_norm(const KernelEntry& kernel, NormCase& c, std::mt19937& random) {
  const abi::NormParams& p = c.p;
  const auto x = numbers_of(c.operands[0], p.x_dtype);
  run_kernel(kernel, p, c.operands, random);
  const auto y = numbers_of(c.operands.back(), p.y_dtype);
  std::vector<double> weight, bias;
  if (p.has_weight) weight = numbers_of(c.operands[1], p.w_dtype);
  if (p.has_bias) bias = numbers_of(c.operands[static_cast<size_t>(1 + p.has_weight)], p.w_dtype);
  for (int64_t row = 0; row < p.rows; ++row) {
    const double* r = x.data() + row * p.x_row_stride;
    double mean = 0, squares = 0;
    for (int64_t i = 0; p.kind == 0 && i < p.size; ++i) mean += r[i] / double(p.size);
    for (int64_t i = 0; i < p.size; ++i) squares += (r[i] - mean) * (r[i] - mean);
    const double scale = 1 / std::sqrt(squares / double(p.size) + p.eps);
    for (int64_t i = 0; i < p.size; i += p.size > 100 ? 13 : 1) {
      double want = (r[i] - mean) * scale;
      if (p.has_weight) want *= weight[static_cast<size_t>(i)];
      if (p.has_bias) want += bias[static_cast<size_t>(i)];
      expect_near(y[static_cast<size_t>(row * p.y_row_stride + i)], want, p.y_dtype, "norm");
    }
  }
}

void test_norm(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 250; ++i) {
    NormCase c = norm_case(random);
    check_norm(isa["norm"], c, random);
    if (c.p.rows * c.p.size < 2000) run_mutations(isa["norm"], c.p, c.operands, 20, random);
  }
  // A spread that is small against the mean: E[x^2] - E[x]^2 would have no digit left.
  NormCase c;
  do c = norm_case(random);
  while (c.p.kind != 0 || c.p.x_dtype != 0 || c.p.y_dtype != 0 || c.p.size != 768);
  for (size_t i = 0; i < c.operands[0].bytes.size() / 4; ++i)
    put(c.operands[0], 0, i, 4096 + static_cast<double>(i % 5));
  check_norm(isa["norm"], c, random);
}

// ---- group norm

struct GroupCase {
  abi::GroupNormParams p = {};
  Layout x, y;
  std::vector<Operand> operands;
};

GroupCase group_case(std::mt19937& random) {
  GroupCase c;
  const int64_t kGroups[] = {1, 2, 3, 4, 8, 32};
  c.p.batch = pick(random, 1, 3);
  c.p.groups = kGroups[random() % std::size(kGroups)];
  c.p.channels = c.p.groups * pick(random, 1, random() % 4 ? 6 : 100);
  c.p.spatial = kSizes[random() % 12];
  c.p.eps = 1e-5;
  c.p.has_weight = static_cast<int32_t>(random() % 2);
  c.p.has_bias = static_cast<int32_t>(random() % 2);
  const bool wide = random() % 6 == 0;
  c.p.x_dtype = wide ? 3 : static_cast<int32_t>(random() % 3);
  c.p.w_dtype = wide ? 3 : static_cast<int32_t>(random() % 3);
  c.p.y_dtype = wide ? 3 : static_cast<int32_t>(random() % 3);
  c.p.act = static_cast<int32_t>(
      std::array{abi::Opcode::kCopy, abi::Opcode::kRelu, abi::Opcode::kSilu}[random() % 3]);
  Layout shape;
  shape.rank = 3;
  const int64_t sizes[] = {c.p.batch, c.p.channels, c.p.spatial};
  std::copy_n(sizes, 3, shape.shape);
  c.x = random_layout(shape, kPermuted | kPadded, random);
  c.y = random() % 2 ? c.x : random_layout(shape, kPermuted | kPadded, random);
  std::copy_n(c.x.strides, 3, c.p.x_strides);
  std::copy_n(c.y.strides, 3, c.p.y_strides);
  c.operands.push_back(operand_of(c.x, c.p.x_dtype, random));
  for (int k = 0; k < c.p.has_weight + c.p.has_bias; ++k)
    c.operands.push_back(operand_of(line(c.p.channels), c.p.w_dtype, random));
  c.operands.push_back(operand_of(c.y, c.p.y_dtype, random));
  return c;
}

void check_group_norm(const KernelEntry& kernel, GroupCase& c, std::mt19937& random) {
  const abi::GroupNormParams& p = c.p;
  const auto x = elements_of(c.operands[0], c.x, p.x_dtype);
  const Operand before = c.operands.back();
  run_kernel(kernel, p, c.operands, random);
  const auto y = elements_of(c.operands.back(), c.y, p.y_dtype);
  const int64_t each = p.channels / p.groups, n = each * p.spatial;
  std::vector<double> weight, bias;
  if (p.has_weight) weight = numbers_of(c.operands[1], p.w_dtype);
  if (p.has_bias) bias = numbers_of(c.operands[static_cast<size_t>(1 + p.has_weight)], p.w_dtype);
  for (int64_t g = 0; g < p.batch * p.groups; ++g) {
    const double* r = x.data() + g * n;
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) mean += r[i] / double(n);
    for (int64_t i = 0; i < n; ++i) squares += (r[i] - mean) * (r[i] - mean);
    for (int64_t i = 0; i < n; ++i) {
      const auto channel = static_cast<size_t>(g % p.groups * each + i / p.spatial);
      double want = (r[i] - mean) / std::sqrt(squares / double(n) + p.eps);
      if (p.has_weight) want *= weight[channel];
      if (p.has_bias) want += bias[channel];
      want = reference_activation(static_cast<abi::Opcode>(p.act), want, 0, 0);
      expect_near(y[static_cast<size_t>(g * n + i)], want, p.y_dtype, "group norm");
    }
  }
  expect(gaps_untouched(before, c.operands.back(), c.y, p.y_dtype), "group norm", "wrote a gap");
}

void test_group_norm(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 250; ++i) {
    GroupCase c = group_case(random);
    check_group_norm(isa["group_norm"], c, random);
    if (c.x.count() < 2000) run_mutations(isa["group_norm"], c.p, c.operands, 20, random);
    if (c.p.x_dtype != 0 || c.p.y_dtype != 0) continue;
    for (size_t e = 0; e < c.operands[0].bytes.size() / 4; ++e)
      put(c.operands[0], 0, e, 4096 + static_cast<double>(e % 5));
    check_group_norm(isa["group_norm"], c, random);
  }
}

// ---- refusals and in-place runs

template <typename Params, typename Change>
void refused(const KernelEntry& kernel, const Params& sound, const std::vector<Operand>& operands,
             Change change, const char* what) {
  Params p = sound;
  change(p);
  expect(!refusal(kernel, p, operands).empty(), std::string(kernel.name) + " accepts", what);
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const std::vector<Operand> pair = {operand_of(line(600), 0, random),
                                     operand_of(line(600), 0, random)};
  const abi::SoftmaxParams soft = {2, 300, 1, 0, 0, 0};
  expect(refusal(isa["softmax"], soft, pair).empty(), "softmax", "refuses sound ones");
  refused(isa["softmax"], soft, pair, [](auto& p) { p.size = 301; }, "a row past the end");
  refused(isa["softmax"], soft, pair, [](auto& p) { p.outer = -2; }, "a negative size");
  refused(isa["softmax"], soft, pair, [](auto& p) { p.x_dtype = 4; }, "integers");
  refused(
      isa["softmax"], soft, pair, [](auto& p) { p.outer = p.inner = int64_t{1} << 40; },
      "an overflow");
  abi::NormParams norm = {};
  norm.rows = 2;
  norm.size = norm.x_row_stride = norm.y_row_stride = 300;
  expect(refusal(isa["norm"], norm, pair).empty(), "norm", "refuses sound ones");
  refused(isa["norm"], norm, pair, [](auto& p) { p.kind = 2; }, "a kind that does not exist");
  refused(isa["norm"], norm, pair, [](auto& p) { p.has_weight = 1; }, "a missing weight");
  refused(isa["norm"], norm, pair, [](auto& p) { p.has_weight = 1, p.has_bias = -1; }, "flags");
  refused(isa["norm"], norm, pair, [](auto& p) { p.y_row_stride = 299; }, "rows that collide");
  abi::GroupNormParams group = {1, 6, 100, 2, {600, 100, 1}, {600, 100, 1}, 1e-5, 0, 0, 0, 0, 0, 0};
  expect(refusal(isa["group_norm"], group, pair).empty(), "group norm", "refuses sound ones");
  refused(isa["group_norm"], group, pair, [](auto& p) { p.groups = 4; }, "groups that do not fit");
  refused(isa["group_norm"], group, pair, [](auto& p) { p.groups = 0; }, "no groups");
  refused(isa["group_norm"], group, pair, [](auto& p) { p.act = 64; }, "an addition for act");
  refused(isa["group_norm"], group, pair, [](auto& p) { p.spatial = 101; }, "past the end");
}

// y over x's own memory gives what a separate y does.
template <typename Params>
void check_in_place(const KernelEntry& kernel, const Params& p, std::mt19937& random) {
  std::vector<Operand> operands = {operand_of(line(6000), 0, random),
                                   operand_of(line(6000), 0, random)};
  Operand both = operands[0];
  run_kernel(kernel, p, operands, random);
  void* pointers[] = {both.bytes.data(), both.bytes.data()};
  alignas(64) std::byte scratch[65536];
  expect(kernel.scratch(&p) <= int64_t{sizeof scratch}, kernel.name, "takes more scratch");
  CountedFailures failures;
  kernel.run({&p, pointers, 0, kernel.tasks(&p, 2), scratch, &failures});
  expect(both.bytes == operands[1].bytes, kernel.name, "differs in place");
}

void test_in_place(const TestedIsa& isa, std::mt19937& random) {
  for (const int32_t log : {0, 1}) {
    check_in_place(isa["softmax"], abi::SoftmaxParams{10, 600, 1, log, 0, 0}, random);
    check_in_place(isa["softmax"], abi::SoftmaxParams{2, 30, 100, log, 0, 0}, random);
  }
  abi::NormParams norm = {};
  norm.rows = 10;
  norm.size = norm.x_row_stride = norm.y_row_stride = 600;
  check_in_place(isa["norm"], norm, random);
  const abi::GroupNormParams first = {2, 60, 50, 4, {3000, 50, 1}, {3000, 50, 1}, 1e-5, 0, 0,
                                      0, 0,  0,  34};
  check_in_place(isa["group_norm"], first, random);
  const abi::GroupNormParams last = {2, 60, 50, 4, {3000, 1, 60}, {3000, 1, 60}, 1e-5, 0, 0,
                                     0, 0,  0,  34};
  check_in_place(isa["group_norm"], last, random);
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"softmax", "norm", "group_norm"})) {
    std::mt19937 random(4);
    test_softmax(isa, random);
    test_norm(isa, random);
    test_group_norm(isa, random);
    test_refusals(isa, random);
    test_in_place(isa, random);
    std::printf("%s: softmax, norm and group_norm agree\n", isa.name);
  }
}
