// attention against softmax(cap(scale * q·kᵀ) + mask)·v in double, on every instruction set of this
// machine: block and lane tails, few and many rows, grouped heads, every kind of mask, causal
// offsets, caches filled up to a position, windows, capped scores, rows that see nothing, strided
// operands, 16-bit storage; the refusals and the run's errors; and mutated parameters, which
// check() must refuse or which must then run inside their operands.
#include "tests/cpp/kernel_call.h"
#include "tests/cpp/mutation.h"

namespace npusim::cpu {
namespace {

using Params = abi::AttentionParams;
constexpr int32_t kBool = 9;

int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

std::string describe(const TestedIsa& isa, const Params& p) {
  std::string out = std::string(isa.name) + " attention";
  for (const int64_t n : {p.batch, p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim, p.v_dim}) {
    out += " " + std::to_string(n);
  }
  return out + " dtype " + std::to_string(p.dtype) + " mask " +
         std::to_string(p.has_mask ? p.mask_dtype : -1) + " causal " +
         (p.causal ? std::to_string(p.causal_offset) : "no") + " window " +
         std::to_string(p.window) + " cap " + std::to_string(p.softcap) +
         (p.has_position ? " of a cache" : "");
}

// [batch, heads, length, columns] stored as such, or with heads inside positions, and some gap.
void set_strides(int64_t (&strides)[3], int64_t heads, int64_t length, int64_t columns,
                 std::mt19937& random) {
  const int64_t gap = columns + pick(random, 0, 3);
  const bool heads_inside = random() % 2;
  strides[1] = heads_inside ? gap : gap * length;
  strides[2] = heads_inside ? gap * heads : gap;
  strides[0] = gap * heads * length;
}

Operand mask_of(const Params& p, std::mt19937& random) {
  const int64_t elements = (p.batch - 1) * p.mask_strides[0] + (p.heads - 1) * p.mask_strides[1] +
                           (p.q_len - 1) * p.mask_strides[2] + (p.kv_len - 1) * p.mask_strides[3] +
                           1;
  if (p.mask_dtype != kBool) return random_operand(p.mask_dtype, elements, random);
  Operand out;
  out.bytes.resize(static_cast<size_t>(elements));
  for (std::byte& b : out.bytes) b = static_cast<std::byte>(random() % 3 != 0);
  return out;
}

int64_t position_in(const Operand& operand) {
  int64_t position;
  std::memcpy(&position, operand.bytes.data() + operand.offset, sizeof position);
  return position;
}
Operand position_of(int64_t position) {
  Operand out;
  out.bytes.resize(sizeof position);
  std::memcpy(out.bytes.data(), &position, sizeof position);
  return out;
}

double mask_value(const Params& p, const Operand& mask, int64_t at) {
  if (p.mask_dtype == kBool)
    return mask.bytes[static_cast<size_t>(at)] == std::byte{} ? -INFINITY : 0;
  return load_as(p.mask_dtype, mask.bytes.data() + at * dtype_bytes(p.mask_dtype));
}

// One row of the reference: the output of query i of head h of batch b.
std::vector<double> reference_row(const Params& p, const std::vector<Operand>& operands,
                                  const std::vector<std::vector<double>>& qkv, int64_t b, int64_t h,
                                  int64_t i) {
  const int64_t kv = h / (p.heads / p.kv_heads);
  const int64_t position =
      p.has_position ? position_in(operands[static_cast<size_t>(3 + p.has_mask)]) : 0;
  const int64_t offset = p.has_position ? position : p.causal_offset;
  const int64_t used = p.has_position ? position + p.q_len : p.kv_len;
  std::vector<double> scores;
  double top = -INFINITY, total = 0;
  for (int64_t j = 0; j < used; ++j) {
    double score = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      const auto q = b * p.q_strides[0] + h * p.q_strides[1] + i * p.q_strides[2] + d;
      const auto k = b * p.k_strides[0] + kv * p.k_strides[1] + j * p.k_strides[2] + d;
      score += qkv[0][static_cast<size_t>(q)] * qkv[1][static_cast<size_t>(k)];
    }
    score *= static_cast<double>(p.scale);
    if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
    if (p.has_mask) {
      score += mask_value(p, operands[3],
                          b * p.mask_strides[0] + h * p.mask_strides[1] + i * p.mask_strides[2] +
                              j * p.mask_strides[3]);
    }
    if (p.causal && j > i + offset) score = -INFINITY;
    if (p.window > 0 && j <= i + offset - p.window) score = -INFINITY;
    scores.push_back(score);
    top = std::max(top, score);
  }
  std::vector<double> out(static_cast<size_t>(p.v_dim), 0.0);
  if (top == -INFINITY) return out;
  for (double& s : scores) total += s = std::exp(s - top);
  for (int64_t j = 0; j < used; ++j) {
    if (scores[static_cast<size_t>(j)] == 0) continue;  // what nobody sees may be NaN
    for (int64_t d = 0; d < p.v_dim; ++d) {
      const auto v = b * p.v_strides[0] + kv * p.v_strides[1] + j * p.v_strides[2] + d;
      out[static_cast<size_t>(d)] +=
          scores[static_cast<size_t>(j)] / total * qkv[2][static_cast<size_t>(v)];
    }
  }
  return out;
}

std::vector<Operand> operands_of(const Params& p, std::mt19937& random) {
  const auto extent = [&](const int64_t (&s)[3], int64_t heads, int64_t length, int64_t columns) {
    return (p.batch - 1) * s[0] + (heads - 1) * s[1] + (length - 1) * s[2] + columns;
  };
  std::vector<Operand> out;
  out.push_back(random_operand(p.dtype, extent(p.q_strides, p.heads, p.q_len, p.head_dim), random));
  out.push_back(
      random_operand(p.dtype, extent(p.k_strides, p.kv_heads, p.kv_len, p.head_dim), random));
  out.push_back(
      random_operand(p.dtype, extent(p.v_strides, p.kv_heads, p.kv_len, p.v_dim), random));
  if (p.has_mask) out.push_back(mask_of(p, random));
  if (p.has_position) {
    const int64_t last = p.kv_len - p.q_len;
    out.push_back(position_of(random() % 3 ? pick(random, 0, last) : last));
  }
  out.push_back(random_operand(p.dtype, extent(p.y_strides, p.heads, p.q_len, p.v_dim), random));
  return out;
}

void check_rows(const TestedIsa& isa, const Params& p, std::vector<Operand>& operands,
                std::mt19937& random) {
  std::vector<std::vector<double>> qkv;
  for (size_t i = 0; i < 3; ++i) qkv.push_back(values_of(operands[i], p.dtype));
  run_kernel(isa["attention"], p, operands, random);
  const std::vector<double> y = values_of(operands.back(), p.dtype);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t i = 0; i < p.q_len; ++i) {
        const std::vector<double> want = reference_row(p, operands, qkv, b, h, i);
        const int64_t at = b * p.y_strides[0] + h * p.y_strides[1] + i * p.y_strides[2];
        for (int64_t d = 0; d < p.v_dim; ++d) {
          expect_close(y[static_cast<size_t>(at + d)], want[static_cast<size_t>(d)], p.dtype,
                       static_cast<double>(p.head_dim), describe(isa, p));
        }
      }
    }
  }
}

void test_case(const TestedIsa& isa, const Params& p, std::mt19937& random) {
  std::vector<Operand> operands = operands_of(p, random);
  check_rows(isa, p, operands, random);
}

Params dense(int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len, int64_t kv_len,
             int64_t head_dim, int64_t v_dim, std::mt19937& random) {
  Params p{};
  p.batch = batch;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.head_dim = head_dim;
  p.v_dim = v_dim;
  p.scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  set_strides(p.q_strides, heads, q_len, head_dim, random);
  set_strides(p.k_strides, kv_heads, kv_len, head_dim, random);
  set_strides(p.v_strides, kv_heads, kv_len, v_dim, random);
  set_strides(p.y_strides, heads, q_len, v_dim, random);
  return p;
}

// A mask of any dtype: full, transposed, shared by heads, by queries, or a scalar.
void add_mask(Params& p, std::mt19937& random) {
  constexpr int32_t kDtypes[] = {0, 1, 2, kBool};
  p.has_mask = 1;
  p.mask_dtype = kDtypes[random() % 4];
  const bool transposed = random() % 4 == 0;
  p.mask_strides[3] = transposed ? p.q_len : 1;
  p.mask_strides[2] = transposed ? 1 : p.kv_len;
  p.mask_strides[1] = p.q_len * p.kv_len;
  p.mask_strides[0] = p.q_len * p.kv_len * p.heads;
  for (int64_t& stride : p.mask_strides) {
    if (random() % 3 == 0) stride = 0;
  }
}

Params random_case(std::mt19937& random) {
  constexpr int64_t kLengths[] = {1,  2,  3,   4,   5,   15,  16,  17, 31,
                                  64, 65, 100, 127, 128, 129, 130, 260};
  constexpr int64_t kColumns[] = {1, 3, 8, 16, 17, 24, 32, 64, 72, 80};
  const int64_t kv_heads = pick(random, 1, 3), group = pick(random, 1, 3);
  Params p =
      dense(pick(random, 1, 2), kv_heads * group, kv_heads, kLengths[random() % 14],
            kLengths[random() % 17], kColumns[random() % 10], kColumns[random() % 10], random);
  p.dtype = static_cast<int32_t>(random() % 3);
  if (random() % 2) add_mask(p, random);
  if (random() % 3 == 0) {
    p.causal = 1;
    p.causal_offset = pick(random, -p.q_len, p.kv_len);
  } else if (p.q_len <= p.kv_len && random() % 2) {
    p.causal = random() % 4 != 0;
    p.has_position = 1;
  }
  if (p.causal && random() % 3 == 0) p.window = pick(random, 1, p.kv_len + 3);
  if (random() % 4 == 0) p.softcap = 0.5F + static_cast<float>(random() % 8);
  return p;
}

// Rows of the cache after those in use may hold anything: they are not read. Here they hold NaN.
void test_free_rows(const TestedIsa& isa, int64_t q_len, int64_t position, std::mt19937& random) {
  Params p = dense(1, 12, 2, q_len, 600, 128, 128, random);
  p.causal = p.has_position = 1;
  p.dtype = 2;
  std::vector<Operand> operands = operands_of(p, random);
  operands[3] = position_of(position);
  for (const size_t i : {1U, 2U}) {
    const auto& strides = i == 1 ? p.k_strides : p.v_strides;
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      for (int64_t row = position + q_len; row < p.kv_len; ++row) {
        const auto at = static_cast<size_t>(head * strides[1] + row * strides[2]) * 2;
        std::memset(operands[i].bytes.data() + at, 0xFF, 256);
      }
    }
  }
  check_rows(isa, p, operands, random);
}

// Keys that the window of every row has passed are not read either.
void test_passed_keys(const TestedIsa& isa, int64_t q_len, std::mt19937& random) {
  Params p = dense(1, 4, 2, q_len, 700, 64, 64, random);
  p.causal = p.has_position = 1;
  p.window = 150;
  std::vector<Operand> operands = operands_of(p, random);
  operands[3] = position_of(690 - q_len);
  const int64_t first = 690 - q_len + 1 - p.window;
  for (const size_t i : {1U, 2U}) {
    const auto& strides = i == 1 ? p.k_strides : p.v_strides;
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      for (int64_t row = 0; row < first; ++row) {
        const auto at = static_cast<size_t>(head * strides[1] + row * strides[2]) * 4;
        std::memset(operands[i].bytes.data() + at, 0xFF, 256);
      }
    }
  }
  check_rows(isa, p, operands, random);
}

// A position that leaves no room for the queries fails the run, and no element of y is written.
void test_positions_outside(const TestedIsa& isa, std::mt19937& random) {
  Params p = dense(1, 6, 2, 3, 200, 32, 32, random);
  p.causal = p.has_position = 1;
  for (const int64_t position : {int64_t{-1}, int64_t{198}, INT64_MAX, INT64_MIN}) {
    std::vector<Operand> operands = operands_of(p, random);
    operands[3] = position_of(position);
    const std::vector<std::byte> before = operands.back().bytes;
    expect(run_accepted(isa["attention"], p, operands) > 0, describe(isa, p),
           "took position " + std::to_string(position));
    expect(operands.back().bytes == before, describe(isa, p), "wrote at a bad position");
  }
}

void test_large_scores(const TestedIsa& isa, std::mt19937& random) {
  Params p = dense(1, 1, 1, 20, 300, 16, 16, random);
  p.scale = 1000;  // weights of one key or few: exp must not overflow, sums must shrink to 0
  test_case(isa, p, random);
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const KernelEntry& kernel = isa["attention"];
  const Params good = dense(2, 4, 2, 5, 7, 16, 16, random);
  const std::vector<Operand> operands = operands_of(good, random);
  expect(refusal(kernel, good, operands).empty(), "attention", "a sound case was refused");
  const auto refused = [&](auto&& spoil, const char* what) {
    Params bad = good;
    spoil(bad);
    expect(!refusal(kernel, bad, operands).empty(), "attention", std::string("accepted ") + what);
  };
  refused([](Params& p) { p.kv_heads = 3; }, "heads that do not divide");
  refused([](Params& p) { p.kv_heads = 0; }, "no key/value heads");
  refused([](Params& p) { p.q_len = -1; }, "a negative length");
  refused([](Params& p) { p.kv_len = 8; }, "one key too many");
  refused([](Params& p) { p.head_dim = INT64_MAX; }, "a huge head");
  refused([](Params& p) { p.y_strides[1] = 0; }, "heads that share an output");
  refused([](Params& p) { p.k_strides[2] = -p.k_strides[2]; }, "a stride before the buffer");
  refused([](Params& p) { p.dtype = 4; }, "integers");
  refused([](Params& p) { p.has_mask = 1; }, "a missing mask");
  refused([](Params& p) { p.causal_offset = INT64_MAX; }, "an offset that overflows");
  refused([](Params& p) { p.has_position = 1; }, "a missing position");
  refused([](Params& p) { p.window = 3; }, "a window without causal");
  refused([](Params& p) { p.causal = 1, p.window = -1; }, "a negative window");
  refused([](Params& p) { p.causal = 1, p.window = INT64_MAX; }, "a window that overflows");
  refused([](Params& p) { p.softcap = -1; }, "a negative cap");
  refused([](Params& p) { p.softcap = NAN; }, "a cap that is no number");
  Params cache = good;
  cache.has_position = 1;
  std::vector<Operand> with_position = operands;
  with_position.insert(with_position.begin() + 3, position_of(0));
  expect(refusal(kernel, cache, with_position).empty(), "attention", "a sound cache was refused");
  with_position[3].bytes.resize(4);
  expect(!refusal(kernel, cache, with_position).empty(), "attention", "accepted half a position");
  with_position[3] = position_of(0);
  cache.kv_len = 4;
  expect(!refusal(kernel, cache, with_position).empty(), "attention", "accepted a small cache");
}

void test_isa(const TestedIsa& isa) {
  std::mt19937 random(7);
  for (int i = 0; i < 250; ++i) test_case(isa, random_case(random), random);
  test_large_scores(isa, random);
  test_refusals(isa, random);
  for (const int64_t q_len : {1, 2, 40}) {
    for (const int64_t position : {0, 127, 300}) test_free_rows(isa, q_len, position, random);
    test_passed_keys(isa, q_len, random);
  }
  test_positions_outside(isa, random);
  for (int i = 0; i < 30; ++i) {
    const Params p = random_case(random);
    run_mutations(isa["attention"], p, operands_of(p, random), 60, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"attention"})) test_isa(isa);
}
