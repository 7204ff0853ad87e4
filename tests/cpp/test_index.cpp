// index and scatter against loops over every position, on every instruction set of this machine:
// embeddings, gathers, several index tensors, negative indices, every element size, dtype and mode,
// collisions; indices out of range, which must be reported and never followed; the refusals; and
// mutated parameters, which check() must refuse or which must then run inside their operands.
#include "tests/cpp/kernel_call.h"
#include "tests/cpp/mutation.h"
#include "tests/cpp/typed_operand.h"

namespace npusim::cpu {
namespace {

constexpr int kRank = abi::kRank;
constexpr int32_t kIndexDtypes[] = {4, 5, 8};

int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// What index and scatter share: a space of positions, and n index tensors that complete an address.
struct Case {
  int32_t rank = 0, n = 0, idx_dtype = 4;
  int64_t shape[kRank] = {};
  int64_t dense[kRank] = {}, indexed[kRank] = {};
  int64_t idx[abi::kIndexTensors * kRank] = {};
  int64_t k_size[abi::kIndexTensors] = {}, k_stride[abi::kIndexTensors] = {};

  int64_t positions() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= shape[d];
    return count;
  }
  int64_t dense_extent() const { return extent(dense); }
  int64_t idx_extent(int k) const { return extent(idx + k * kRank); }
  int64_t indexed_extent() const {
    int64_t last = extent(indexed);
    for (int k = 0; k < n; ++k) last += (k_size[k] - 1) * k_stride[k];
    return last;
  }
  int64_t extent(const int64_t* strides) const {
    int64_t last = 0;
    for (int d = 0; d < rank; ++d) last += (shape[d] - 1) * strides[d];
    return last + 1;
  }
};

// Every position of the space in row-major order: offsets of each operand, by their strides.
template <typename F>
void for_each_position(const Case& c, F&& f) {
  for (int64_t i = 0; i < c.positions(); ++i) {
    int64_t at[kRank] = {}, rest = i;
    for (int d = c.rank - 1; d >= 0; --d) {
      at[d] = rest % c.shape[d];
      rest /= c.shape[d];
    }
    const auto offset = [&](const int64_t* strides) {
      int64_t sum = 0;
      for (int d = 0; d < c.rank; ++d) sum += at[d] * strides[d];
      return sum;
    };
    f(offset);
  }
}

// The indexed side is a tensor whose dimensions are some positions' and all k, in a random order;
// index tensors vary along the leading `varying` dimensions only, as in advanced indexing.
Case random_case(std::mt19937& random) {
  Case c;
  c.rank = static_cast<int32_t>(pick(random, 1, 4));
  c.n = static_cast<int32_t>(pick(random, 0, 3));
  c.idx_dtype = kIndexDtypes[random() % 3];
  for (int d = 0; d < c.rank; ++d) c.shape[d] = pick(random, 1, random() % 5 == 0 ? 40 : 6);
  int64_t step = 1 + random() % 2;
  for (int d = c.rank - 1; d >= 0; --d) {
    c.dense[d] = step;
    step *= c.shape[d] + random() % 2;
  }
  step = 1;
  const int64_t varying = pick(random, 0, c.rank);
  for (int d = c.rank - 1; d >= varying; --d) {
    c.indexed[d] = step;
    step *= c.shape[d];
  }
  for (int k = c.n - 1; k >= 0; --k) {
    c.k_size[k] = pick(random, 1, 9);
    c.k_stride[k] = step;
    step *= c.k_size[k];
  }
  for (int64_t d = varying - 1; d >= 0; --d) {  // as gather has it: positions count there as well
    c.indexed[d] = random() % 2 ? step : 0;
    if (c.indexed[d]) step *= c.shape[d];
  }
  for (int k = 0; k < c.n; ++k) {
    int64_t inner = 1;
    for (int64_t d = varying - 1; d >= 0; --d) {
      const bool broadcast = random() % 4 == 0;
      c.idx[k * kRank + d] = broadcast ? 0 : inner;
      if (!broadcast) inner *= c.shape[d];
    }
  }
  return c;
}

// The embedding of a ten-row table by some tokens.
Case embedding(int64_t tokens = 5, int64_t width = 64) {
  Case c;
  c.rank = 2;
  c.n = 1;
  c.shape[0] = tokens;
  c.shape[1] = width;
  c.dense[0] = width;
  c.dense[1] = c.indexed[1] = 1;
  c.idx[0] = 1;
  c.k_size[0] = 10;
  c.k_stride[0] = width;
  return c;
}

Operand index_operand(const Case& c, int k, std::mt19937& random) {
  const int64_t elements = c.idx_extent(k), size = size_of_dtype(c.idx_dtype);
  Operand out;
  out.bytes.resize(static_cast<size_t>(elements * size));
  for (int64_t i = 0; i < elements; ++i) {
    const int64_t lowest = c.idx_dtype == 8 ? 0 : -c.k_size[k];
    const int64_t value = pick(random, lowest, c.k_size[k] - 1);  // little-endian: the low bytes
    std::memcpy(out.bytes.data() + i * size, &value, static_cast<size_t>(size));
  }
  return out;
}

std::vector<std::vector<double>> index_values(const Case& c, const std::vector<Operand>& operands) {
  std::vector<std::vector<double>> out;
  for (int k = 0; k < c.n; ++k) {
    out.push_back(numbers_of(operands[static_cast<size_t>(k) + 1], c.idx_dtype));
  }
  return out;
}

template <typename Offset>
int64_t completed(const Case& c, const std::vector<std::vector<double>>& idx, Offset&& offset) {
  int64_t sum = offset(c.indexed);
  for (int k = 0; k < c.n; ++k) {
    const auto value = static_cast<int64_t>(
        idx[static_cast<size_t>(k)][static_cast<size_t>(offset(c.idx + k * kRank))]);
    sum += (value < 0 ? value + c.k_size[k] : value) * c.k_stride[k];
  }
  return sum;
}

template <typename Params>
void copy_common(const Case& c, Params& p) {
  p.idx_dtype = c.idx_dtype;
  p.n = c.n;
  p.rank = c.rank;
  std::memcpy(p.shape, c.shape, sizeof p.shape);
  std::memcpy(p.idx_strides, c.idx, sizeof p.idx_strides);
  std::memcpy(p.k_size, c.k_size, sizeof p.k_size);
  std::memcpy(p.k_stride, c.k_stride, sizeof p.k_stride);
}

abi::IndexParams index_params(const Case& c, int32_t size) {
  abi::IndexParams p{};
  copy_common(c, p);
  p.element_size = size;
  std::memcpy(p.x_strides, c.indexed, sizeof p.x_strides);
  std::memcpy(p.y_strides, c.dense, sizeof p.y_strides);
  return p;
}

std::string describe(const TestedIsa& isa, const char* kernel, const Case& c) {
  std::string out = std::string(isa.name) + " " + kernel + " shape";
  for (int d = 0; d < c.rank; ++d) out += " " + std::to_string(c.shape[d]);
  return out + " n " + std::to_string(c.n) + " idx dtype " + std::to_string(c.idx_dtype);
}

std::vector<Operand> index_operands(const Case& c, int32_t dtype, std::mt19937& random) {
  std::vector<Operand> operands{typed_operand(dtype, c.indexed_extent(), random)};
  for (int k = 0; k < c.n; ++k) operands.push_back(index_operand(c, k, random));
  operands.push_back(typed_operand(dtype, c.dense_extent(), random));
  return operands;
}

void test_index(const TestedIsa& isa, const Case& c, std::mt19937& random) {
  constexpr int32_t kDtypes[] = {7, 6, 5, 4};  // of 1, 2, 4 and 8 bytes
  const int32_t dtype = kDtypes[random() % 4];
  std::vector<Operand> operands = index_operands(c, dtype, random);
  const std::vector<double> x = numbers_of(operands[0], dtype);
  const auto size = static_cast<int32_t>(size_of_dtype(dtype));
  run_kernel(isa["index"], index_params(c, size), operands, random);
  const std::vector<double> y = numbers_of(operands.back(), dtype);
  const auto idx = index_values(c, operands);
  for_each_position(c, [&](auto&& offset) {
    expect(y[static_cast<size_t>(offset(c.dense))] ==
               x[static_cast<size_t>(completed(c, idx, offset))],
           describe(isa, "index", c), "a wrong element");
  });
}

abi::ScatterParams scatter_params(const Case& c, int32_t mode, int32_t dtype) {
  abi::ScatterParams p{};
  copy_common(c, p);
  p.mode = mode;
  p.dtype = dtype;
  std::memcpy(p.src_strides, c.dense, sizeof p.src_strides);
  std::memcpy(p.y_strides, c.indexed, sizeof p.y_strides);
  return p;
}

std::vector<Operand> scatter_operands(const Case& c, int32_t dtype, std::mt19937& random) {
  std::vector<Operand> operands{typed_operand(dtype, c.dense_extent(), random)};
  for (int k = 0; k < c.n; ++k) operands.push_back(index_operand(c, k, random));
  operands.push_back(typed_operand(dtype, c.indexed_extent(), random));
  return operands;
}

double combine(int32_t mode, double y, double x) {
  switch (mode) {
    case 1:
      return y + x;
    case 2:
      return y * x;
    case 3:
      return std::max(y, x);
    case 4:
      return std::min(y, x);
    default:
      return x;
  }
}

void test_scatter(const TestedIsa& isa, const Case& c, std::mt19937& random) {
  const auto dtype = static_cast<int32_t>(random() % 10), mode = static_cast<int32_t>(random() % 5);
  const std::string where = describe(isa, "scatter", c) + " dtype " + std::to_string(dtype) +
                            " mode " + std::to_string(mode);
  std::vector<Operand> operands = scatter_operands(c, dtype, random);
  const std::vector<double> src = numbers_of(operands[0], dtype);
  std::vector<double> want = numbers_of(operands.back(), dtype);
  std::vector<int> touched(want.size(), 0);
  std::vector<double> largest(want.size(), 0);  // what was stored on the way, which was rounded
  const auto idx = index_values(c, operands);
  for_each_position(c, [&](auto&& offset) {
    const auto at = static_cast<size_t>(completed(c, idx, offset));
    double x = combine(mode, want[at], src[static_cast<size_t>(offset(c.dense))]);
    want[at] = dtype <= 2 ? x : wrap(x, dtype);
    largest[at] = std::max(largest[at], std::abs(want[at]));
    ++touched[at];
  });
  run_kernel(isa["scatter"], scatter_params(c, mode, dtype), operands, random);
  const std::vector<double> y = numbers_of(operands.back(), dtype);
  for (size_t i = 0; i < want.size(); ++i) {
    if (dtype > 2 || touched[i] == 0) {
      expect(y[i] == want[i], where,
             "got " + std::to_string(y[i]) + ", expected " + std::to_string(want[i]));
    } else if (mode != 2 || touched[i] < 4) {  // longer products leave what 16 bits resolve
      const double rounding = dtype == 0 ? 1e-6 : dtype == 1 ? 1e-3 : 8e-3;
      expect(std::abs(y[i] - want[i]) <= rounding * touched[i] * (1 + largest[i]), where,
             "got " + std::to_string(y[i]) + ", expected " + std::to_string(want[i]));
    }
  }
}

// An index beyond either end is reported, and the elements of other tasks still arrive.
void test_out_of_range(const TestedIsa& isa, std::mt19937& random) {
  for (const int64_t wrong : {int64_t{10}, int64_t{-11}, INT64_MAX, INT64_MIN}) {
    const Case c = embedding();
    std::vector<Operand> operands = index_operands(c, 5, random);
    std::memcpy(operands[1].bytes.data() + 3 * 8, &wrong, 8);
    expect(run_accepted(isa["index"], index_params(c, 4), operands) == 1, "index",
           "index " + std::to_string(wrong) + " of 10 was not reported once");
    operands = scatter_operands(c, 5, random);
    std::memcpy(operands[1].bytes.data() + 3 * 8, &wrong, 8);
    expect(run_accepted(isa["scatter"], scatter_params(c, 1, 5), operands) > 0, "scatter",
           "index " + std::to_string(wrong) + " of 10 was not reported");
  }
}

// A negated size: an index below zero is out of range as well.
void test_unwrapped(const TestedIsa& isa, std::mt19937& random) {
  for (const int64_t given : {0, 9, 10, -1, -10}) {
    const Case c = embedding();
    const bool right = given >= 0 && given < 10;
    std::vector<Operand> operands = index_operands(c, 5, random);
    for (int i = 0; i < 5; ++i) std::memcpy(operands[1].bytes.data() + i * 8, &given, 8);
    abi::IndexParams taken = index_params(c, 4);
    taken.k_size[0] = -taken.k_size[0];
    expect((run_accepted(isa["index"], taken, operands) == 0) == right, "index",
           "index " + std::to_string(given) + " of 10, not wrapping");
    operands = scatter_operands(c, 5, random);
    for (int i = 0; i < 5; ++i) std::memcpy(operands[1].bytes.data() + i * 8, &given, 8);
    abi::ScatterParams put = scatter_params(c, 1, 5);
    put.k_size[0] = -put.k_size[0];
    expect((run_accepted(isa["scatter"], put, operands) == 0) == right, "scatter",
           "index " + std::to_string(given) + " of 10, not wrapping");
  }
}

// A table without rows: no index is in range, and nothing may be read.
void test_empty_table(const TestedIsa& isa, std::mt19937& random) {
  Case c = embedding();
  std::vector<Operand> operands = index_operands(c, 5, random);
  c.k_size[0] = 0;
  operands[0].bytes.clear();
  expect(run_accepted(isa["index"], index_params(c, 4), operands) == 1, "index",
         "an index into an empty table was not reported");
}

void test_nan_wins(const TestedIsa& isa, std::mt19937& random) {
  for (const int32_t mode : {3, 4}) {
    const Case c = embedding();
    std::vector<Operand> operands = scatter_operands(c, 0, random);
    const int64_t row = 7;
    const float nan = NAN;
    std::memcpy(operands[1].bytes.data(), &row, 8);
    std::memcpy(operands[0].bytes.data() + 4, &nan, 4);
    run_kernel(isa["scatter"], scatter_params(c, mode, 0), operands, random);
    expect(std::isnan(numbers_of(operands.back(), 0)[7 * 64 + 1]), "scatter", "NaN lost");
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const Case sound = embedding();
  const std::vector<Operand> operands = index_operands(sound, 5, random);
  const auto refused = [&](auto&& spoil, const char* what) {
    abi::IndexParams p = index_params(sound, 4);
    spoil(p);
    expect(!refusal(isa["index"], p, operands).empty(), "index", std::string("accepted ") + what);
  };
  refused([](auto& p) { p.n = 7; }, "too many index tensors");
  refused([](auto& p) { p.n = -1; }, "a negative number of index tensors");
  refused([](auto& p) { p.rank = 9; }, "too many dimensions");
  refused([](auto& p) { p.k_size[0] = 11; }, "a table larger than its operand");
  refused([](auto& p) { p.k_size[0] = -11; }, "a table larger than its operand, not wrapping");
  refused([](auto& p) { p.k_size[0] = INT64_MIN; }, "a table of negative size");
  refused([](auto& p) { p.shape[0] = 6; }, "more positions than indices");
  refused([](auto& p) { p.idx_dtype = 0; }, "float indices");
  refused([](auto& p) { p.element_size = 3; }, "an element of 3 bytes");
  refused([](auto& p) { p.y_strides[0] = 0; }, "rows that share an output");
}

void test_isa(const TestedIsa& isa) {
  std::mt19937 random(13);
  for (int i = 0; i < 10; ++i) {  // large enough for many tasks
    test_index(isa, embedding(300, 500), random);
    test_scatter(isa, embedding(300, 500), random);
  }
  for (int i = 0; i < 300; ++i) {
    const Case c = random_case(random);
    test_index(isa, c, random);
    test_scatter(isa, c, random);
  }
  test_out_of_range(isa, random);
  test_unwrapped(isa, random);
  test_empty_table(isa, random);
  test_nan_wins(isa, random);
  test_refusals(isa, random);
  const auto too_long = [](const auto& p) {
    double work = 1;
    for (const int64_t n : p.shape) work *= static_cast<double>(std::max<int64_t>(1, n));
    return work > 1e7;
  };
  for (int i = 0; i < 60; ++i) {
    const Case c = random_case(random);
    run_mutations(isa["index"], index_params(c, 4), index_operands(c, 5, random), 50, random,
                  too_long);
    const auto mode = static_cast<int32_t>(random() % 5);
    run_mutations(isa["scatter"], scatter_params(c, mode, 5), scatter_operands(c, 5, random), 50,
                  random, too_long);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"index", "scatter"})) test_isa(isa);
}
