// rope against its formula in double, on every instruction set of this machine: one to three parts,
// halves and neighbours, rotations of whole heads and of their beginning, appends at a position,
// strided and shared operands, cosines of any dtype, in-place runs; what lies around the rows it
// appends stays; the refusals and the run's errors; and mutated parameters, which check() must
// refuse or which must then run inside their operands.
#include "tests/cpp/mutation.h"
#include "tests/cpp/strided.h"

namespace npusim::cpu {
namespace {

using Params = abi::RopeParams;

std::string describe(const TestedIsa& isa, const Params& p) {
  return std::string(isa.name) + " rope of " + std::to_string(p.parts) + " parts, " +
         std::to_string(p.batch) + " x " + std::to_string(p.length) + ", rotates " +
         std::to_string(p.rotary_dim) + " of " + std::to_string(p.head_dim[0]) + ", dtypes " +
         std::to_string(p.dtype) + " " + std::to_string(p.cs_dtype) +
         (p.interleaved ? ", interleaved" : "");
}

Operand position_of(int64_t position) {
  Operand out;
  out.bytes.resize(sizeof position);
  std::memcpy(out.bytes.data(), &position, sizeof position);
  return out;
}

// A command, its operands, and how each part's x and y lie: [batch, heads, rows, dim].
struct RopeCase {
  Params p = {};
  int64_t position = 0;
  Layout x[3], y[3];
  std::vector<Operand> operands;

  size_t output(int part) const { return static_cast<size_t>(p.parts + 2 + p.has_position + part); }
};

Layout heads_of(int64_t batch, int64_t heads, int64_t rows, int64_t dim, std::mt19937& random) {
  Layout out;
  out.rank = 4;
  const int64_t gap = dim + pick(random, 0, 3);
  const bool heads_inside = random() % 2;
  const int64_t shape[] = {batch, heads, rows, dim};
  std::copy_n(shape, 4, out.shape);
  out.strides[3] = 1;
  out.strides[1] = heads_inside ? gap : gap * rows;
  out.strides[2] = heads_inside ? gap * heads : gap;
  out.strides[0] = gap * heads * rows;
  return out;
}

void add_part(RopeCase& c, int i, int64_t dim, std::mt19937& random) {
  Params& p = c.p;
  p.heads[i] = pick(random, 1, 5);
  p.head_dim[i] = dim;
  p.limit[i] = p.at_position[i] ? p.length + pick(random, 0, 6) : 0;
  const int64_t rows = p.at_position[i] ? p.limit[i] : p.length;
  c.x[i] = heads_of(p.batch, p.heads[i], p.length, dim, random);
  c.y[i] = heads_of(p.batch, p.heads[i], rows, dim, random);
  for (int d = 0; d < 3; ++d) {
    p.x_strides[3 * i + d] = c.x[i].strides[d];
    p.y_strides[3 * i + d] = c.y[i].strides[d];
  }
}

RopeCase random_case(std::mt19937& random) {
  constexpr int64_t kRotary[] = {2, 4, 6, 16, 24, 32, 34, 64, 80, 128};
  RopeCase c;
  Params& p = c.p;
  p.parts = static_cast<int32_t>(pick(random, 1, 3));
  p.batch = pick(random, 1, 2);
  p.length = random() % 2 ? 1 : pick(random, 2, 40);
  p.interleaved = static_cast<int32_t>(random() % 2);
  p.dtype = static_cast<int32_t>(random() % 3);
  p.cs_dtype = static_cast<int32_t>(random() % 3);
  p.has_position = static_cast<int32_t>(random() % 2);
  bool rotates = false;
  for (int i = 0; i < p.parts; ++i) {
    p.rotate[i] = random() % 4 != 0;
    p.at_position[i] = p.has_position ? static_cast<int32_t>(random() % 2) : 0;
    rotates |= p.rotate[i] != 0;
  }
  p.rotary_dim = rotates ? kRotary[random() % std::size(kRotary)] : 0;
  int64_t last = 1000;
  for (int i = 0; i < p.parts; ++i) {
    const int64_t dim = p.rotary_dim + (random() % 2 ? 0 : pick(random, 1, 20));
    add_part(c, i, std::max<int64_t>(dim, 1), random);
    if (p.at_position[i]) last = std::min(last, p.limit[i] - p.length);
  }
  c.position = pick(random, 0, last);
  for (int i = 0; i < p.parts; ++i) c.operands.push_back(operand_of(c.x[i], p.dtype, random));
  for (int i = 0; i < 2; ++i) {
    Layout angles;
    angles.rank = 3;
    angles.shape[0] = p.batch;
    angles.shape[1] = p.length;
    angles.shape[2] = p.rotary_dim;
    angles.strides[2] = 1;
    angles.strides[1] = p.cs_strides[2 * i + 1] = p.rotary_dim + pick(random, 0, 2);
    angles.strides[0] = p.cs_strides[2 * i] = random() % 2 ? 0 : angles.strides[1] * p.length;
    c.operands.push_back(operand_of(angles, p.cs_dtype, random));
  }
  if (p.has_position) c.operands.push_back(position_of(c.position));
  for (int i = 0; i < p.parts; ++i) c.operands.push_back(operand_of(c.y[i], p.dtype, random));
  return c;
}

// What element `d` of a head becomes; `x` are the head's elements, `at` the token's first angle.
double rotated(const RopeCase& c, int part, const double* x, int64_t d, int64_t b, int64_t t,
               const std::vector<double>& cos, const std::vector<double>& sin) {
  const Params& p = c.p;
  if (!p.rotate[part] || d >= p.rotary_dim) return x[d];
  const int64_t half = p.rotary_dim / 2;
  const bool first = p.interleaved ? d % 2 == 0 : d < half;
  const int64_t step = p.interleaved ? 1 : half;
  const double partner = first ? -x[d + step] : x[d - step];
  const auto at = [&](int i) {
    return static_cast<size_t>(b * p.cs_strides[2 * i] + t * p.cs_strides[2 * i + 1] + d);
  };
  return x[d] * cos[at(0)] + partner * sin[at(1)];
}

void check_part(const TestedIsa& isa, const RopeCase& c, int part,
                const std::vector<Operand>& before) {
  const Params& p = c.p;
  const auto parts = static_cast<size_t>(p.parts);
  const std::vector<double> x = elements_of(before[static_cast<size_t>(part)], c.x[part], p.dtype);
  const std::vector<double> cos = values_of(before[parts], p.cs_dtype);
  const std::vector<double> sin = values_of(before[parts + 1], p.cs_dtype);
  const Operand& old = before[c.output(part)];
  const Operand& y = c.operands[c.output(part)];
  const std::vector<double> was = elements_of(old, c.y[part], p.dtype);
  const std::vector<double> got = elements_of(y, c.y[part], p.dtype);
  const int64_t dim = p.head_dim[part], rows = c.y[part].shape[2];
  const int64_t first = p.at_position[part] ? c.position : 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / dim;  // of y: (batch, head, row)
    const int64_t t = row % rows - first, head = row / rows;
    double want = was[i];
    if (t >= 0 && t < p.length) {
      const double* from = x.data() + (head * p.length + t) * dim;
      want =
          rotated(c, part, from, static_cast<int64_t>(i) % dim, head / p.heads[part], t, cos, sin);
    }
    expect_close(got[i], want, p.dtype, 2, describe(isa, p));
  }
  expect(gaps_untouched(old, y, c.y[part], p.dtype), describe(isa, p), "wrote a gap");
}

void test_case(const TestedIsa& isa, RopeCase c, std::mt19937& random) {
  const std::vector<Operand> before = c.operands;
  run_kernel(isa["rope"], c.p, c.operands, random);
  for (int i = 0; i < c.p.parts; ++i) check_part(isa, c, i, before);
}

// Heads turned where they lie give what separate results do.
void test_in_place(const TestedIsa& isa, int32_t interleaved, int32_t dtype, std::mt19937& random) {
  RopeCase c;
  Params& p = c.p;
  p.parts = 1;
  p.batch = 1;
  p.length = 5;
  p.rotary_dim = 40;
  p.rotate[0] = 1;
  p.interleaved = interleaved;
  p.dtype = dtype;
  add_part(c, 0, 50, random);
  c.y[0] = c.x[0];
  std::copy_n(p.x_strides, 3, p.y_strides);
  p.cs_strides[1] = p.cs_strides[3] = p.rotary_dim;
  c.operands = {operand_of(c.x[0], dtype, random), random_operand(0, 5 * p.rotary_dim, random),
                random_operand(0, 5 * p.rotary_dim, random)};
  c.operands.push_back(c.operands[0]);
  Operand both = c.operands[0];
  run_kernel(isa["rope"], p, c.operands, random);
  void* pointers[] = {both.bytes.data(), c.operands[1].bytes.data(), c.operands[2].bytes.data(),
                      both.bytes.data()};
  alignas(64) std::byte scratch[4096];
  expect(isa["rope"].scratch(&p) <= int64_t{sizeof scratch}, "rope", "takes more scratch");
  NoFailure failure;
  isa["rope"].run({&p, pointers, 0, isa["rope"].tasks(&p, 2), scratch, &failure});
  expect(both.bytes == c.operands[3].bytes, describe(isa, p), "differs in place");
}

// Queries, keys and values of a token: 12, 2 and 2 heads of 128, appended to caches of 20 rows.
RopeCase decode_case(std::mt19937& random) {
  RopeCase c;
  Params& p = c.p;
  p.parts = 3;
  p.batch = p.length = 1;
  p.rotary_dim = 128;
  p.has_position = 1;
  for (int i = 0; i < 3; ++i) {
    p.rotate[i] = i < 2;
    p.at_position[i] = i > 0;
    p.heads[i] = i == 0 ? 12 : 2;
    p.head_dim[i] = 128;
    p.limit[i] = i == 0 ? 0 : 20;
    c.x[i] = heads_of(1, p.heads[i], 1, 128, random);
    c.y[i] = heads_of(1, p.heads[i], i == 0 ? 1 : 20, 128, random);
    for (int d = 0; d < 3; ++d) {
      p.x_strides[3 * i + d] = c.x[i].strides[d];
      p.y_strides[3 * i + d] = c.y[i].strides[d];
    }
  }
  p.cs_strides[1] = p.cs_strides[3] = 128;
  c.position = 19;
  for (int i = 0; i < 3; ++i) c.operands.push_back(operand_of(c.x[i], 0, random));
  for (int i = 0; i < 2; ++i) c.operands.push_back(random_operand(0, 128, random));
  c.operands.push_back(position_of(c.position));
  for (int i = 0; i < 3; ++i) c.operands.push_back(operand_of(c.y[i], 0, random));
  return c;
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  const KernelEntry& kernel = isa["rope"];
  const RopeCase good = decode_case(random);
  expect(refusal(kernel, good.p, good.operands).empty(), "rope", "a sound case was refused");
  expect(kernel.outputs != nullptr && kernel.outputs(&good.p) == 3, "rope", "writes all parts");
  const auto refused = [&](auto&& spoil, const char* what) {
    RopeCase bad = good;
    spoil(bad.p);
    const bool caught = !refusal(kernel, bad.p, bad.operands).empty();
    expect(caught, "rope", std::string("accepted ") + what);
  };
  refused([](Params& p) { p.parts = 4; }, "four parts");
  refused([](Params& p) { p.parts = 0; }, "no part");
  refused([](Params& p) { p.parts = 2; }, "operands of another part");
  refused([](Params& p) { p.rotary_dim = 130; }, "a rotation longer than a head");
  refused([](Params& p) { p.rotary_dim = 127; }, "an odd rotation");
  refused([](Params& p) { p.rotary_dim = -2; }, "a negative rotation");
  refused([](Params& p) { p.length = 2; }, "a token too many");
  refused([](Params& p) { p.heads[0] = 13; }, "a head too many");
  refused([](Params& p) { p.heads[1] = INT64_MAX; }, "heads that overflow");
  refused([](Params& p) { p.limit[2] = 21; }, "a cache longer than its operand");
  refused([](Params& p) { p.limit[1] = 0; }, "a cache shorter than a token");
  refused([](Params& p) { p.y_strides[4] = 0; }, "heads that share a row");
  refused([](Params& p) { p.has_position = 0; }, "an append without a position");
  refused([](Params& p) { p.rotate[0] = p.rotate[1] = 0; }, "angles that nobody takes");
  refused([](Params& p) { p.at_position[0] = 2; }, "a flag of 2");
  refused([](Params& p) { p.dtype = 4; }, "integers");
  refused([](Params& p) { p.cs_dtype = 3; }, "angles in double");
  refused([](Params& p) { p.cs_strides[1] = INT64_MIN, p.length = 0, p.batch = -1; },
          "a batch < 0");
}

// A position that leaves no room fails the run, and no element is written.
void test_positions_outside(const TestedIsa& isa, std::mt19937& random) {
  for (const int64_t position : {int64_t{-1}, int64_t{20}, INT64_MAX, INT64_MIN}) {
    RopeCase c = decode_case(random);
    c.operands[5] = position_of(position);
    const std::vector<Operand> before = c.operands;
    expect(run_accepted(isa["rope"], c.p, c.operands) > 0, "rope",
           "took position " + std::to_string(position));
    for (int i = 0; i < 3; ++i) {
      expect(c.operands[c.output(i)].bytes == before[c.output(i)].bytes, "rope",
             "wrote at position " + std::to_string(position));
    }
  }
}

void test_isa(const TestedIsa& isa) {
  std::mt19937 random(11);
  for (int i = 0; i < 400; ++i) test_case(isa, random_case(random), random);
  test_case(isa, decode_case(random), random);
  for (const int32_t interleaved : {0, 1}) {
    for (const int32_t dtype : {0, 1, 2}) test_in_place(isa, interleaved, dtype, random);
  }
  test_refusals(isa, random);
  test_positions_outside(isa, random);
  for (int i = 0; i < 60; ++i) {
    const RopeCase c = random_case(random);
    run_mutations(isa["rope"], c.p, c.operands, 60, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"rope"})) test_isa(isa);
}
