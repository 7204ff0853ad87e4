// matmul and widening_matmul against plain sums, on every instruction set of this machine: row,
// column and depth tails, every arrangement of strides, broadcast batches, all dtypes, alpha; the
// refusals; and mutated parameters, which check() must refuse or which must then run inside their
// operands.
#include "tests/cpp/kernel_call.h"
#include "tests/cpp/mutation.h"
#include "tests/cpp/typed_operand.h"

namespace npusim::cpu {
namespace {

using Params = abi::MatmulParams;

int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

std::string describe(const TestedIsa& isa, const Params& p) {
  return std::string(isa.name) + " matmul batch " + std::to_string(p.batch[4]) + "x" +
         std::to_string(p.batch[5]) + " m " + std::to_string(p.m) + " n " + std::to_string(p.n) +
         " k " + std::to_string(p.k) + " a " + std::to_string(p.a_m) + "," + std::to_string(p.a_k) +
         " b " + std::to_string(p.b_k) + "," + std::to_string(p.b_n) + " dtype " +
         std::to_string(p.dtype);
}

// Strides of a rows x columns matrix: dense or with gaps, row-major, column-major, or neither.
void lay_out(int64_t rows, int64_t columns, int64_t& row, int64_t& column, std::mt19937& random) {
  const int64_t step = random() % 4 == 0 ? 2 : 1, gap = pick(random, 0, 2) * (random() % 2);
  const bool transposed = random() % 2;
  (transposed ? row : column) = step;
  (transposed ? column : row) = step * (transposed ? rows : columns) + gap;
}

int64_t extent(const Params& p, const int64_t (&batch)[6], int64_t rows, int64_t row,
               int64_t columns, int64_t column) {
  int64_t last = (rows - 1) * row + (columns - 1) * column;
  for (int d = 0; d < 6; ++d) last += (p.batch[d] - 1) * batch[d];
  return last + 1;
}

int64_t a_extent(const Params& p) {
  return extent(p, p.a_batch, p.m, p.a_m, p.k, p.a_k);
}
int64_t b_extent(const Params& p) {
  return extent(p, p.b_batch, p.k, p.b_k, p.n, p.b_n);
}
int64_t y_extent(const Params& p) {
  return extent(p, p.y_batch, p.m, p.y_m, p.n, 1);
}

Params random_case(std::mt19937& random) {
  constexpr int64_t kSizes[] = {1, 2, 3, 4, 5, 7, 13, 16, 17, 24, 31, 32, 48, 50, 64, 65, 100, 129};
  Params p{};
  for (int64_t& n : p.batch) n = 1;
  p.batch[4] = pick(random, 1, 2);
  p.batch[5] = pick(random, 1, 3);
  p.m = kSizes[random() % std::size(kSizes)];
  p.n = kSizes[random() % std::size(kSizes)];
  p.k = kSizes[random() % std::size(kSizes)];
  if (random() % 10 == 0) (random() % 2 ? p.k : p.n) = 300 + pick(random, 0, 250);
  lay_out(p.m, p.k, p.a_m, p.a_k, random);
  lay_out(p.k, p.n, p.b_k, p.b_n, random);
  p.y_m = p.n + pick(random, 0, 2);
  p.y_batch[5] = p.y_m * p.m;
  p.y_batch[4] = p.y_batch[5] * p.batch[5];
  p.a_batch[5] = random() % 3 ? p.m * p.k : 0;
  p.b_batch[4] = random() % 3 ? p.k * p.n : 0;
  p.dtype = random() % 2 ? 0 : static_cast<int32_t>(random() % 10);
  p.alpha = random() % 2 ? 1.0F : random() % 2 ? 2.0F : -3.0F;
  return p;
}

double reference(const Params& p, const std::vector<double>& a, const std::vector<double>& b,
                 int64_t outer, int64_t inner, int64_t m, int64_t n) {
  const int64_t a_at = outer * p.a_batch[4] + inner * p.a_batch[5] + m * p.a_m;
  const int64_t b_at = outer * p.b_batch[4] + inner * p.b_batch[5] + n * p.b_n;
  double sum = 0;
  for (int64_t k = 0; k < p.k; ++k) {
    sum += a[static_cast<size_t>(a_at + k * p.a_k)] * b[static_cast<size_t>(b_at + k * p.b_k)];
  }
  return sum * static_cast<double>(p.alpha);
}

void expect_product(double got, double want, const Params& p, int32_t y_dtype,
                    const std::string& where) {
  if (y_dtype <= 2) return expect_close(got, want, y_dtype, static_cast<double>(p.k) * 9, where);
  const double wrapped = wrap(want, p.dtype);
  expect(got == wrapped, where,
         "got " + std::to_string(got) + ", expected " + std::to_string(wrapped));
}

// Whether y is float32, as widening_matmul leaves it.
bool widens(const Params& p) {
  return p.dtype == 1 || p.dtype == 2;
}

void test_case(const TestedIsa& isa, const Params& p, std::mt19937& random, bool widening = false) {
  if (widens(p) && !widening) test_case(isa, p, random, true);
  const int32_t y_dtype = widening ? 0 : p.dtype;
  std::vector<Operand> operands{typed_operand(p.dtype, a_extent(p), random),
                                typed_operand(p.dtype, b_extent(p), random),
                                typed_operand(y_dtype, y_extent(p), random)};
  const std::vector<double> a = numbers_of(operands[0], p.dtype);
  const std::vector<double> b = numbers_of(operands[1], p.dtype);
  run_kernel(isa[widening ? "widening_matmul" : "matmul"], p, operands, random);
  const std::vector<double> y = numbers_of(operands[2], y_dtype);
  for (int64_t outer = 0; outer < p.batch[4]; ++outer) {
    for (int64_t inner = 0; inner < p.batch[5]; ++inner) {
      for (int64_t m = 0; m < p.m; ++m) {
        for (int64_t n = 0; n < p.n; ++n) {
          const int64_t at = outer * p.y_batch[4] + inner * p.y_batch[5] + m * p.y_m + n;
          expect_product(y[static_cast<size_t>(at)], reference(p, a, b, outer, inner, m, n), p,
                         y_dtype, describe(isa, p) + (widening ? " widening" : ""));
        }
      }
    }
  }
}

// a·bᵀ of dense float32: items of one batch.
Params dense(int64_t items, int64_t m, int64_t n, int64_t k) {
  Params p{};
  for (int64_t& size : p.batch) size = 1;
  p.batch[5] = items;
  p.m = m, p.n = n, p.k = k;
  p.a_m = k, p.a_k = 1, p.b_k = 1, p.b_n = k, p.y_m = n;
  p.a_batch[5] = m * k, p.b_batch[5] = n * k, p.y_batch[5] = m * n;
  p.alpha = 1;
  return p;
}

// Blocks of rows that are no multiple of the largest one, and of columns that are cut for tasks.
void test_blocks(const TestedIsa& isa, std::mt19937& random) {
  for (const Params& p : {dense(1, 203, 40, 33), dense(2, 12, 200, 160), dense(1, 30, 144, 300),
                          dense(1, 50, 328, 70), dense(3, 1, 552, 400), dense(1, 9, 257, 130)}) {
    test_case(isa, p, random);
    Params half = p;
    half.dtype = static_cast<int32_t>(abi::DType::kBfloat16);
    test_case(isa, half, random);
  }
}

// What tests/simulate/test_shares.py says, too: as many with vectors of 8 floats as of 16.
void test_tasks(const TestedIsa& isa) {
  const std::string_view name(isa.name);
  if (name.find("avx512") != 0 && name != "avx2") return;
  constexpr int64_t kTasks[][5] = {
      {1, 30, 144, 1592, 6}, {32, 16, 24, 128, 16},  {1, 12, 200, 160, 2}, {2, 203, 48, 160, 4},
      {1, 1, 552, 3304, 6},  {12, 11, 592, 112, 36}, {1, 65, 32, 32, 1},   {4, 478, 520, 32, 36},
      {1, 5, 16, 16, 1},     {16, 205, 832, 32, 128}};
  for (const auto& [items, m, n, k, tasks] : kTasks) {
    const Params p = dense(items, m, n, k);
    const int64_t found = isa["matmul"].tasks(&p, 2);
    expect(found == tasks, describe(isa, p), std::to_string(found) + " tasks");
  }
}

// No terms: every sum is 0.
void test_empty_depth(const TestedIsa& isa, std::mt19937& random) {
  Params p = random_case(random);
  for (const int32_t dtype : {0, 2}) {
    p.dtype = dtype;
    p.k = 0;
    std::vector<Operand> operands{{}, {}, typed_operand(dtype, y_extent(p), random)};
    run_kernel(isa["matmul"], p, operands, random);
    const std::vector<double> y = numbers_of(operands[2], dtype);
    expect(y[0] == 0 && y.back() == 0, describe(isa, p), "a sum of no terms is not 0");
  }
}

// A row or column of NaN and infinities reaches its row and column alone, and all of these.
void test_edges(const TestedIsa& isa, std::mt19937& random) {
  constexpr auto kBfloat16 = static_cast<int32_t>(abi::DType::kBfloat16);
  for (const bool transposed : {false, true}) {
    Params p = dense(1, 37, 45, 51);
    p.dtype = kBfloat16;
    if (transposed) {
      p.a_m = 1, p.a_k = p.m;
      p.b_k = p.n, p.b_n = 1;
    }
    std::vector<Operand> operands{typed_operand(kBfloat16, a_extent(p), random),
                                  typed_operand(kBfloat16, b_extent(p), random),
                                  typed_operand(0, y_extent(p), random)};
    const auto put = [](Operand& operand, int64_t at, uint16_t bits) {
      std::memcpy(operand.bytes.data() + operand.offset + 2 * at, &bits, 2);
    };
    put(operands[0], 36 * p.a_m + 50 * p.a_k, 0x7FC0);  // a[36][50]: NaN
    put(operands[1], 50 * p.b_k + 44 * p.b_n, 0x7F80);  // b[50][44]: infinity
    run_kernel(isa["widening_matmul"], p, operands, random);
    const std::vector<double> y = numbers_of(operands[2], 0);
    for (int64_t m = 0; m < p.m; ++m) {
      for (int64_t n = 0; n < p.n; ++n) {
        const double got = y[static_cast<size_t>(m * p.y_m + n)];
        expect(std::isnan(got) == (m == 36) || (n == 44 && !std::isfinite(got)), describe(isa, p),
               "NaN or infinity went astray");
        expect(std::isfinite(got) == (m != 36 && n != 44), describe(isa, p), "a number is hidden");
      }
    }
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  Params good{};
  for (int64_t& n : good.batch) n = 1;
  good.batch[5] = 2;
  good.m = 5, good.n = 16, good.k = 7;
  good.a_m = 7, good.a_k = 1, good.b_k = 16, good.b_n = 1, good.y_m = 16;
  good.a_batch[5] = 35, good.b_batch[5] = 112, good.y_batch[5] = 80;
  good.alpha = 1;
  std::vector<Operand> operands{typed_operand(0, 70, random), typed_operand(0, 224, random),
                                typed_operand(0, 160, random)};
  const KernelEntry& kernel = isa["matmul"];
  expect(refusal(kernel, good, operands).empty(), "matmul", "a sound case was refused");
  const auto refused = [&](auto&& spoil, const char* what) {
    Params bad = good;
    spoil(bad);
    expect(!refusal(kernel, bad, operands).empty(), "matmul", std::string("accepted ") + what);
  };
  refused([](Params& p) { p.m = 6; }, "a row too many");
  refused([](Params& p) { p.k = 8; }, "a depth too many");
  refused([](Params& p) { p.n = -1; }, "negative columns");
  refused([](Params& p) { p.batch[0] = INT64_MAX; }, "a huge batch");
  refused([](Params& p) { p.y_batch[5] = 0; }, "batches that share an output");
  refused([](Params& p) { p.b_k = -16; }, "a stride before the buffer");
  refused([](Params& p) { p.dtype = 10; }, "an unknown dtype");
  const auto widening = [&] { return refusal(isa["widening_matmul"], good, operands); };
  expect(!widening().empty(), "widening_matmul", "took operands of float32");
  good.dtype = static_cast<int32_t>(abi::DType::kBfloat16);
  expect(widening().empty(), "widening_matmul", "a sound case was refused");
  good.y_batch[5] = 81;
  expect(!widening().empty(), "widening_matmul", "wrote past y");
  operands.pop_back();
  refused([](Params&) {}, "a missing operand");
}

bool too_long(const Params& p) {
  double work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  return work > 1e8;
}

void test_isa(const TestedIsa& isa) {
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) test_case(isa, random_case(random), random);
  for (int i = 0; i < 5; ++i) test_empty_depth(isa, random);
  test_blocks(isa, random);
  test_tasks(isa);
  test_edges(isa, random);
  test_refusals(isa, random);
  for (int i = 0; i < 40; ++i) {
    const Params p = random_case(random);
    const std::vector<Operand> operands{
        typed_operand(p.dtype, a_extent(p), random), typed_operand(p.dtype, b_extent(p), random),
        typed_operand(widens(p) ? 0 : p.dtype, y_extent(p), random)};
    run_mutations(isa["matmul"], p, operands, 60, random, too_long);
    if (widens(p)) run_mutations(isa["widening_matmul"], p, operands, 60, random, too_long);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"matmul", "widening_matmul"})) test_isa(isa);
}
