// pointwise on every instruction set of this machine: every opcode of every class against the C
// library, remainders of floats bit for bit; random programs of exact operations over random
// shapes, strides and dtypes against an interpreter that takes one element at a time; in-place
// runs; chains to bytes; division by zero, which is reported; the refusals; and mutated parameters.
// The scalar semantics of classes "d" and "i", and the storage conversions, are the reference of
// the plumbing around them: compiled here once more, under a name of their own.
#define NPUSIM_ISA reference

#include <array>
#include <limits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/scalar_ops.h"
#include "tests/cpp/mutation.h"
#include "tests/cpp/strided.h"

namespace npusim::cpu {
namespace {

using abi::Opcode;
using Params = abi::PointwiseParams;
enum Class : int32_t { kF, kD, kI };
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int32_t class_of_dtype(int32_t dtype) {
  return dtype == 3 ? kD : (dtype <= 2 ? kF : kI);
}

// ---- building parameters

struct Builder {
  Params p = {};
  std::vector<Layout> layouts;
  std::vector<Operand> operands;

  Builder(const Layout& shape, int inputs) {
    p.rank = shape.rank;
    p.n_inputs = inputs;
    std::copy_n(shape.shape, shape.rank, p.shape);
  }
  void input(int i, const Layout& x, int32_t dtype, int32_t compute, std::mt19937& random) {
    p.x_dtype[i] = dtype;
    p.x_class[i] = compute;
    std::copy_n(x.strides, x.rank, p.x_strides + i * abi::kRank);
    layouts.push_back(x);
    operands.push_back(operand_of(x, dtype, random));
  }
  void output(const Layout& y, int32_t dtype, int32_t result, int32_t compute,
              std::mt19937& random) {
    p.y_dtype = dtype;
    p.result = result;
    p.result_class = compute;
    std::copy_n(y.strides, y.rank, p.y_strides);
    layouts.push_back(y);
    operands.push_back(operand_of(y, dtype, random));
  }
  void add(Opcode op, int dst, std::array<int, 3> args, int32_t compute) {
    int32_t* c = p.code + 6 * p.n_instructions++;
    c[0] = static_cast<int32_t>(op);
    c[1] = dst;
    for (size_t k = 0; k < 3; ++k) c[2 + k] = args[k];
    c[5] = compute;
  }
};

Layout line(int64_t n) {
  Layout out;
  out.rank = 1;
  out.shape[0] = n;
  out.strides[0] = 1;
  return out;
}

// ---- every opcode

double reference_binary(Opcode op, double a, double b) {
  switch (op) {
    case Opcode::kEq:
    case Opcode::kNe:
    case Opcode::kLt:
    case Opcode::kLe:
    case Opcode::kGt:
    case Opcode::kGe:
    case Opcode::kLogicalAnd:
    case Opcode::kLogicalOr:
    case Opcode::kLogicalXor:
      return static_cast<double>(reference::apply_relation(op, a, b));
    default:
      return reference::apply_binary(op, a, b, nullptr);
  }
}

double reference_unary(Opcode op, double a) {
  if (op == Opcode::kIsnan || op == Opcode::kIsinf || op == Opcode::kLogicalNot)
    return static_cast<double>(reference::apply_test(op, a));
  return reference::apply_unary(op, a);
}

const double kValues[] = {0.5, -0.5, 1.25, -1.25, 2,     -2,   3,    -3, 0.75, 7.5, -7.5, 1,
                          -1,  0,    -0.0, kInf,  -kInf, kNan, 1e-3, 10, -10,  0.1, -0.1, 5};

bool close(double got, double want, double bound) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  return std::abs(got - want) <= bound * (1 + std::abs(want));
}

// Operands cycle through kValues at different speeds; `constant`, if given, is the second one's.
void check_opcode(const KernelEntry& kernel, Opcode op, int32_t compute, int constant,
                  std::mt19937& random) {
  const int arity = abi::kOpcodeArity[static_cast<int>(op)];
  const bool tests = op == Opcode::kIsnan || op == Opcode::kIsinf || op == Opcode::kLogicalNot ||
                     (op >= Opcode::kEq && op <= Opcode::kLogicalXor);
  const int64_t n = 24 * 24 + 5;
  Builder b(line(n), arity);
  const int32_t dtype = compute == kD ? 3 : 0;
  for (int i = 0; i < arity; ++i) {
    b.input(i, line(n), dtype, compute, random);
    for (int64_t e = 0; e < n; ++e) {
      const double value = kValues[(i == 0 ? e : e / 24) % 24];
      const auto narrow = static_cast<float>(value);
      std::byte* at = b.operands.back().bytes.data() + e * size_of_dtype(dtype);
      compute == kD ? std::memcpy(at, &value, 8) : std::memcpy(at, &narrow, 4);
    }
  }
  const int32_t result = tests ? int32_t{kI} : compute;
  b.output(line(n), tests ? 4 : dtype, 5, result, random);
  std::array<int, 3> args = {0, 1, 2};
  if (constant >= 0) args[1] = -1 - constant;
  const double exponents[] = {2, 3, 0.5, -0.5, -1, -2, 1.7};
  std::copy(std::begin(exponents), std::end(exponents), b.p.constants);
  b.add(op, 5, args, compute);
  run_kernel(kernel, b.p, b.operands, random);
  const auto y = numbers_of(b.operands.back(), b.p.y_dtype);
  for (int64_t e = 0; e < n; ++e) {
    const auto as_stored = [&](double v) { return compute == kD ? v : double{float(v)}; };
    const double u = as_stored(kValues[e % 24]);
    const double v = as_stored(constant >= 0 ? b.p.constants[constant] : kValues[e / 24 % 24]);
    double want = arity == 1 ? reference_unary(op, u) : reference_binary(op, u, v);
    // PyTorch takes a constant exponent of one half as the root: NaN at -infinity, -0 at -0.
    if (op == Opcode::kPow && compute == kF && constant == 2) want = std::sqrt(u);
    if (op == Opcode::kPow && compute == kF && constant == 3) want = 1 / std::sqrt(u);
    // Quotients near a whole number may fall on either side of it in float.
    const bool steps = op == Opcode::kDivTrunc || op == Opcode::kDivFloor ||
                       op == Opcode::kRemainder || op == Opcode::kFmod;
    if (steps && compute == kF && std::fmod(u * 40, 1) != 0) continue;
    if (steps && compute == kF && std::fmod(v * 40, 1) != 0) continue;
    const double bound = compute == kD ? 1e-15 : 4e-7;
    if (close(y[static_cast<size_t>(e)], want, bound)) continue;
    fail("pointwise opcode", std::to_string(int(op)) + " class " + std::to_string(compute) + "(" +
                                 std::to_string(u) + ", " + std::to_string(v) +
                                 ") = " + std::to_string(y[static_cast<size_t>(e)]) + ", not " +
                                 std::to_string(want));
  }
}

float by_remainder(Opcode op, float a, float b) {
  const float mod = std::fmod(a, b);
  if (op == Opcode::kRemainder) return reference::remainder_of(mod, b);
  return op == Opcode::kFmod ? mod : reference::floor_divide(a, b, mod);
}

// Any two floats, and quotients beside whole numbers, small and beyond what doubles cut off
// rightly.
void test_remainders(const TestedIsa& isa, std::mt19937& random) {
  constexpr int64_t kNumbers = 16384 + 5;
  const auto any_float = [&] {
    const auto bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  };
  for (const Opcode op : {Opcode::kFmod, Opcode::kRemainder, Opcode::kDivFloor}) {
    Builder b(line(kNumbers), 2);
    for (int i = 0; i < 2; ++i) b.input(i, line(kNumbers), 0, kF, random);
    std::vector<float> x(kNumbers), y(kNumbers);
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = any_float();
      const auto few = static_cast<float>(static_cast<int32_t>(random()) >> (random() % 31));
      x[i] = i % 3 == 0 ? any_float() : few * y[i];
      if (i % 3 == 2) x[i] = std::nextafter(x[i], random() % 2 ? INFINITY : -INFINITY);
      // Alike in whole vectors, as one number that is out of reach takes all of them the slow way.
      if (i / 64 % 2 == 0 && !(std::abs(x[i] / y[i]) < 0x1p27F && std::abs(y[i]) < INFINITY)) {
        y[i] = 0.7F;
        x[i] = static_cast<float>(random() % 1000) * 0.35F;
      }
    }
    std::memcpy(b.operands[0].bytes.data(), x.data(), 4 * x.size());
    std::memcpy(b.operands[1].bytes.data(), y.data(), 4 * y.size());
    b.output(line(kNumbers), 0, 5, kF, random);
    b.add(op, 5, {0, 1, 2}, kF);
    run_kernel(isa["pointwise"], b.p, b.operands, random);
    for (size_t i = 0; i < x.size(); ++i) {
      float got;
      std::memcpy(&got, b.operands[2].bytes.data() + 4 * i, 4);
      const float want = by_remainder(op, x[i], y[i]);
      const bool same = std::memcmp(&got, &want, 4) == 0 || (std::isnan(got) && std::isnan(want));
      if (same) continue;
      fail("pointwise opcode", std::to_string(int(op)) + "(" + std::to_string(x[i]) + ", " +
                                   std::to_string(y[i]) + ") = " + std::to_string(got) + ", not " +
                                   std::to_string(want));
    }
  }
}

void test_opcodes(const TestedIsa& isa, std::mt19937& random) {
  for (int code = 0; code < 128; ++code) {
    const auto op = static_cast<Opcode>(code);
    const int arity = abi::kOpcodeArity[code];
    const bool conversion = op >= Opcode::kToF && op <= Opcode::kToBf16;
    const bool bitwise =
        op == Opcode::kBitwiseNot || (op >= Opcode::kBitwiseAnd && op <= Opcode::kShiftRight);
    if (arity == 0 || arity == 3 || conversion || bitwise) continue;
    for (const int32_t compute : {kF, kD}) {
      check_opcode(isa["pointwise"], op, compute, -1, random);
      for (int k = 0; arity == 2 && k < 7; ++k)
        check_opcode(isa["pointwise"], op, compute, k, random);
    }
  }
}

// Conversions at the edges of what they convert to.
void test_conversions(const TestedIsa& isa, std::mt19937& random) {
  struct Row {
    Opcode op;
    double value, want;
  };
  constexpr double kLow = -0x1p63, kLow32 = -0x1p31;
  const Row rows[] = {{Opcode::kToI, 2.9, 2},
                      {Opcode::kToI, -2.9, -2},
                      {Opcode::kToI, -0x1p63, kLow},
                      {Opcode::kToI, 0x1p63, kLow},
                      {Opcode::kToI, kInf, kLow},
                      {Opcode::kToI, -kInf, kLow},
                      {Opcode::kToI, kNan, kLow},
                      {Opcode::kToI32, 2.9, 2},
                      {Opcode::kToI32, -2.9, -2},
                      {Opcode::kToI32, 0x1p31, kLow32},
                      {Opcode::kToI32, 0x1.fffffep30, 0x1.fffffep30},
                      {Opcode::kToI32, -0x1p31, kLow32},
                      {Opcode::kToI32, 1e30, kLow32},
                      {Opcode::kToI32, kNan, kLow32},
                      {Opcode::kToF16, 65519, 65504},
                      {Opcode::kToF16, 65520, kInf},
                      {Opcode::kToF16, 1 + 0x1p-11, 1},
                      {Opcode::kToF16, 1 + 0x3p-11, 1 + 0x1p-9},
                      {Opcode::kToF16, 0x1p-24, 0x1p-24},
                      {Opcode::kToF16, 0x1p-25, 0},
                      {Opcode::kToF16, -kInf, -kInf},
                      {Opcode::kToBf16, 1 + 0x1p-8, 1},
                      {Opcode::kToBf16, 1 + 0x3p-8, 1 + 0x1p-6},
                      {Opcode::kToBf16, 3.39e38, 0x1.fep127},
                      {Opcode::kToBf16, 3.4e38, kInf},
                      {Opcode::kToBf16, kNan, kNan}};
  for (const Row& row : rows) {
    const bool whole = row.op == Opcode::kToI || row.op == Opcode::kToI32;
    Builder b(line(3), 1);
    b.input(0, line(3), 0, kF, random);
    b.output(line(3), whole ? 4 : 0, 1, whole ? int32_t{kI} : int32_t{kF}, random);
    const auto narrow = static_cast<float>(row.value);
    for (int i = 0; i < 3; ++i) std::memcpy(b.operands[0].bytes.data() + 4 * i, &narrow, 4);
    b.add(row.op, 1, {0, 0, 0}, kF);
    run_kernel(isa["pointwise"], b.p, b.operands, random);
    for (const double got : numbers_of(b.operands.back(), b.p.y_dtype)) {
      expect(got == row.want || (std::isnan(got) && std::isnan(row.want)),
             "pointwise conversion " + std::to_string(int(row.op)),
             std::to_string(row.value) + " gave " + std::to_string(got));
    }
  }
}

// Integer arithmetic at its edges, against values worked out by hand from PyTorch's rules.
void test_integers(const TestedIsa& isa, std::mt19937& random) {
  struct Row {
    Opcode op;
    int64_t a, b, want;
  };
  constexpr int64_t kLow = INT64_MIN;
  const Row rows[] = {{Opcode::kDivTrunc, -7, 2, -3},
                      {Opcode::kDivFloor, -7, 2, -4},
                      {Opcode::kDivFloor, 7, -2, -4},
                      {Opcode::kDivFloor, -8, 2, -4},
                      {Opcode::kRemainder, -7, 2, 1},
                      {Opcode::kRemainder, 7, -2, -1},
                      {Opcode::kFmod, -7, 2, -1},
                      {Opcode::kDivTrunc, kLow, -1, kLow},
                      {Opcode::kFmod, kLow, -1, 0},
                      {Opcode::kPow, 3, 50, 6048575297968530377},
                      {Opcode::kPow, -1, -3, -1},
                      {Opcode::kPow, 2, -1, 0},
                      {Opcode::kPow, 0, 0, 1},
                      {Opcode::kShiftLeft, 3, 3, 24},
                      {Opcode::kShiftLeft, 5, 64, 0},
                      {Opcode::kShiftLeft, 5, -1, 0},
                      {Opcode::kShiftRight, -5, 1, -3},
                      {Opcode::kShiftRight, -5, 99, -1},
                      {Opcode::kShiftRight, 3, -2, 0},
                      {Opcode::kMaximum, -3, 2, 2},
                      {Opcode::kMinimum, -3, 2, -3},
                      {Opcode::kAdd, INT64_MAX, 1, kLow},
                      {Opcode::kSub, kLow, 1, INT64_MAX},
                      {Opcode::kBitwiseAnd, 12, 10, 8},
                      {Opcode::kBitwiseOr, 12, 10, 14},
                      {Opcode::kBitwiseXor, 12, 10, 6},
                      {Opcode::kMul, kLow, 3, kLow},
                      {Opcode::kLt, -1, 0, 1},
                      {Opcode::kLogicalXor, 7, 2, 0}};
  for (const Row& row : rows) {
    Builder b(line(3), 1);
    b.input(0, line(3), 4, kI, random);
    b.output(line(3), 4, 1, kI, random);
    for (int i = 0; i < 3; ++i) std::memcpy(b.operands[0].bytes.data() + 8 * i, &row.a, 8);
    b.p.int_constants[2] = row.b;
    b.add(row.op, 1, {0, -3, 0}, kI);
    run_kernel(isa["pointwise"], b.p, b.operands, random);
    int64_t got;
    std::memcpy(&got, b.operands[1].bytes.data() + 16, 8);
    expect(got == row.want, "pointwise integer opcode " + std::to_string(int(row.op)),
           std::to_string(row.a) + ", " + std::to_string(row.b) + " gave " + std::to_string(got));
  }
}

void test_division_by_zero(const TestedIsa& isa, std::mt19937& random) {
  Builder b(line(5), 1);
  b.input(0, line(5), 5, kI, random);
  b.output(line(5), 5, 1, kI, random);
  b.add(Opcode::kDivTrunc, 1, {0, -1, 0}, kI);
  CountedFailures failures;
  std::vector<std::byte> scratch(static_cast<size_t>(isa["pointwise"].scratch(&b.p)) + 64);
  void* pointers[] = {b.operands[0].bytes.data(), b.operands[1].bytes.data()};
  auto* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~63);
  isa["pointwise"].run({&b.p, pointers, 0, 1, aligned, &failures});
  expect(failures.count == 5, "pointwise", "a division by zero was not reported");
}

// ---- random programs of exact operations

// One element's registers, each a double that holds the register's class exactly.
struct Element {
  double value[abi::kPointwiseRegisters];
};

double exact(Opcode op, double a, double b, double c) {
  switch (op) {
    case Opcode::kWhere:
      return a != 0 ? b : c;
    case Opcode::kFma:
      return a * b + c;
    case Opcode::kClamp:
      return std::min(std::max(a, b), c);
    case Opcode::kToBool:
      return a != 0;
    case Opcode::kToI:
      return std::trunc(a);
    case Opcode::kToF:
    case Opcode::kToD:
      return a;
    default:
      return abi::kOpcodeArity[int(op)] == 1 ? reference_unary(op, a) : reference_binary(op, a, b);
  }
}

int32_t class_after(Opcode op, int32_t compute) {
  if (op == Opcode::kToF) return kF;
  if (op == Opcode::kToD) return kD;
  const bool tests = op == Opcode::kLogicalNot || op == Opcode::kToI || op == Opcode::kToBool ||
                     (op >= Opcode::kEq && op <= Opcode::kLogicalXor);
  return tests ? int32_t{kI} : compute;
}

constexpr Opcode kExact[] = {
    Opcode::kCopy,  Opcode::kNeg,     Opcode::kAbs,        Opcode::kSign,       Opcode::kRelu,
    Opcode::kToF,   Opcode::kToD,     Opcode::kToI,        Opcode::kToBool,     Opcode::kAdd,
    Opcode::kSub,   Opcode::kMaximum, Opcode::kMinimum,    Opcode::kEq,         Opcode::kNe,
    Opcode::kLt,    Opcode::kLe,      Opcode::kGt,         Opcode::kGe,         Opcode::kLogicalAnd,
    Opcode::kWhere, Opcode::kClamp,   Opcode::kLogicalNot, Opcode::kLogicalXor, Opcode::kLogicalOr};

// Appends instructions whose operands exist; returns the last one's register. Registers are reused,
// those of inputs too.
int random_program(Builder& b, int32_t* classes, std::mt19937& random) {
  int last = -1;
  for (int k = 0; k < 8; ++k) b.p.constants[k] = static_cast<double>(b.p.int_constants[k] = k - 3);
  for (int64_t todo = pick(random, 0, 6), tries = 0; todo > 0 && tries < 200; ++tries) {
    const Opcode op = kExact[random() % std::size(kExact)];
    const auto compute = static_cast<int32_t>(random() % 3);
    std::array<int, 3> args = {};
    bool possible = true;
    for (int k = 0; k < abi::kOpcodeArity[int(op)]; ++k) {
      const int32_t wanted = op == Opcode::kWhere && k == 0 ? int32_t{kI} : compute;
      std::vector<int> holders;
      for (int r = 0; r < abi::kPointwiseRegisters; ++r) {
        if (classes[r] == wanted) holders.push_back(r);
      }
      if (random() % 4 == 0) {
        args[static_cast<size_t>(k)] = static_cast<int>(-1 - random() % 8);
      } else if (holders.empty()) {
        possible = false;
      } else {
        args[static_cast<size_t>(k)] = holders[random() % holders.size()];
      }
    }
    if (!possible) continue;
    const int dst = static_cast<int>(random() % abi::kPointwiseRegisters);
    b.add(op, dst, args, compute);
    classes[dst] = class_after(op, compute);
    last = dst;
    --todo;
  }
  return last;
}

double run_element(const Params& p, Element& e) {
  for (int i = 0; i < p.n_instructions; ++i) {
    const int32_t* c = p.code + 6 * i;
    double args[3];
    for (int k = 0; k < 3; ++k)
      args[k] = c[2 + k] < 0 ? p.constants[-1 - c[2 + k]] : e.value[c[2 + k]];
    e.value[c[1]] = exact(static_cast<Opcode>(c[0]), args[0], args[1], args[2]);
  }
  return e.value[p.result];
}

// Values are quarters up to 2.5 or whole up to 10, and six additions double them six times: exact
// in float, and in double; storing may round or wrap.
double stored(double value, int32_t dtype, int32_t compute) {
  double out = 0;
  alignas(8) std::byte room[8];
  const auto keep = [&](auto x) {
    reference::encode_one(dtype, room, 0, x);
    out = reference::decode_one<double>(dtype, room);
  };
  if (compute == kF) keep(static_cast<float>(value));
  if (compute == kD) keep(value);
  if (compute == kI) keep(static_cast<int64_t>(value));
  return out;
}

Builder random_case(const Layout& shape, std::mt19937& random) {
  Builder b(shape, static_cast<int>(pick(random, 0, 4)));
  int32_t classes[abi::kPointwiseRegisters];
  std::fill(std::begin(classes), std::end(classes), -1);
  for (int i = 0; i < b.p.n_inputs; ++i) {
    const auto dtype = static_cast<int32_t>(random() % 3 ? 0 : random() % 10);
    const auto compute = random() % 3 ? class_of_dtype(dtype) : static_cast<int32_t>(random() % 3);
    const int freedom = random() % 2 ? kBroadcast : kPermuted | kPadded | kFlipped | kBroadcast;
    b.input(i, random_layout(shape, freedom, random), dtype, compute, random);
    classes[i] = compute;
  }
  int result = random_program(b, classes, random);
  if (result < 0 || random() % 8 == 0) {
    for (int r = 0; r < abi::kPointwiseRegisters; ++r) result = classes[r] >= 0 ? r : result;
  }
  if (result < 0) {
    b.add(Opcode::kCopy, 3, {-1, 0, 0}, kF);
    classes[result = 3] = kF;
  }
  const auto y_dtype = static_cast<int32_t>(random() % 2 ? 0 : random() % 10);
  const int freedom = random() % 2 ? kDense : kPermuted | kPadded | kFlipped;
  b.output(random_layout(shape, freedom, random), y_dtype, result, classes[result], random);
  return b;
}

void check_program(const KernelEntry& kernel, Builder& b, std::mt19937& random) {
  std::vector<std::vector<double>> inputs;
  for (int i = 0; i < b.p.n_inputs; ++i) {
    inputs.push_back(elements_of(b.operands[static_cast<size_t>(i)],
                                 b.layouts[static_cast<size_t>(i)], b.p.x_dtype[i]));
    if (b.p.x_class[i] != kI) continue;
    for (double& v : inputs.back()) v = std::trunc(v);
  }
  const Operand before = b.operands.back();
  run_kernel(kernel, b.p, b.operands, random);
  const auto y = elements_of(b.operands.back(), b.layouts.back(), b.p.y_dtype);
  for (size_t i = 0; i < y.size(); ++i) {
    Element e = {};
    for (size_t k = 0; k < inputs.size(); ++k) e.value[k] = inputs[k][i];
    const double want = stored(run_element(b.p, e), b.p.y_dtype, b.p.result_class);
    if (y[i] == want) continue;
    fail("pointwise program", "element " + std::to_string(i) + " of " + std::to_string(y.size()) +
                                  " is " + std::to_string(y[i]) + ", not " + std::to_string(want));
  }
  expect(gaps_untouched(before, b.operands.back(), b.layouts.back(), b.p.y_dtype), "pointwise",
         "a gap of y was written");
}

void test_programs(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 1500; ++i) {
    Builder b = random_case(random_shape(4, i % 50 ? 6000 : 100000, random), random);
    check_program(isa["pointwise"], b, random);
  }
}

// An instruction whose result takes the register of an input that is one value for all elements.
void test_one_value(const TestedIsa& isa, std::mt19937& random) {
  for (const int64_t n : {1, 4, 5, 16, 17, 33, 5003}) {
    Builder b(line(n), 1);
    Layout one = line(n);
    one.strides[0] = 0;
    b.input(0, one, 0, kF, random);
    b.output(line(n), 0, 0, kF, random);
    b.p.constants[0] = 5;
    b.add(Opcode::kSub, 0, {-1, 0, 0}, kF);
    const float value = 2;
    std::memcpy(b.operands[0].bytes.data(), &value, sizeof value);
    run_kernel(isa["pointwise"], b.p, b.operands, random);
    for (const double got : numbers_of(b.operands.back(), 0)) {
      expect(got == 3, "pointwise over one value", "5 - 2 gave " + std::to_string(got));
    }
  }
}

// y over the memory of x0, as the memory planner may place it.
void test_in_place(const TestedIsa& isa, std::mt19937& random) {
  for (const int64_t n : {1, 15, 16, 1000, 1024, 5003, 70000}) {
    Builder b(line(n), 1);
    b.input(0, line(n), 0, kF, random);
    b.output(line(n), 0, 0, kF, random);
    b.p.constants[0] = 3;
    b.add(Opcode::kAdd, 1, {0, 0, 0}, kF);
    b.add(Opcode::kAdd, 0, {1, -1, 0}, kF);
    const auto x = values_of(b.operands[0], 0);
    std::vector<std::byte> scratch(static_cast<size_t>(isa["pointwise"].scratch(&b.p)) + 64);
    void* pointers[] = {b.operands[0].bytes.data(), b.operands[0].bytes.data()};
    auto* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~63);
    CountedFailures failures;
    isa["pointwise"].run({&b.p, pointers, 0, isa["pointwise"].tasks(&b.p, 2), aligned, &failures});
    const auto y = values_of(b.operands[0], 0);
    for (size_t i = 0; i < y.size(); ++i) expect(y[i] == 2 * x[i] + 3, "pointwise", "in place");
  }
}

// ---- chains that end in bytes

// x of a dtype, whose rows may be pieces of longer ones; a factor and a term of each column, a
// number for all, and what is subtracted. `copied`: the first instruction is one that no chain has.
Builder byte_chain_case(int64_t columns, int64_t row_stride, int32_t dtype, bool copied,
                        std::mt19937& random) {
  const auto space = [&](int64_t outer, int64_t middle, int64_t inner) {
    Layout out;
    out.rank = 3;
    const int64_t shape[] = {2, 7, columns}, strides[] = {outer, middle, inner};
    std::copy_n(shape, 3, out.shape);
    std::copy_n(strides, 3, out.strides);
    return out;
  };
  const Layout rows = space(7 * row_stride, row_stride, 1), each = space(0, 0, 1);
  const Layout dense = space(7 * columns, columns, 1);
  Builder b(rows, 5);
  b.input(0, rows, dtype, kF, random);
  b.input(1, each, 0, kF, random);
  b.input(2, each, 0, kF, random);
  b.input(3, space(0, 0, 0), 0, kF, random);
  b.input(4, dense, static_cast<int32_t>(abi::DType::kInt8), kF, random);
  b.output(dense, static_cast<int32_t>(abi::DType::kUint8), 5, kF, random);
  const double constants[] = {0.375, 3, 0, 255, 0.25};
  std::copy(std::begin(constants), std::end(constants), b.p.constants);
  const int x = copied ? 6 : 0;
  if (copied) b.add(Opcode::kCopy, x, {0, 0, 0}, kF);
  b.add(Opcode::kMul, 0, {x, 1, 0}, kF);
  b.add(Opcode::kAdd, 5, {2, 0, 0}, kF);
  b.add(Opcode::kRelu, 0, {5, 0, 0}, kF);
  b.add(Opcode::kSub, 5, {0, 4, 0}, kF);
  b.add(Opcode::kMul, 5, {5, 3, 0}, kF);
  b.add(Opcode::kAdd, 5, {5, -5, 0}, kF);
  b.add(Opcode::kDiv, 5, {5, -1, 0}, kF);
  b.add(Opcode::kRound, 5, {5, 0, 0}, kF);
  b.add(Opcode::kAdd, 5, {5, -2, 0}, kF);
  b.add(Opcode::kClamp, 5, {5, -3, -4}, kF);
  return b;
}

void fill_floats(Operand& operand, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 20);
  for (size_t i = 0; i + 4 <= operand.bytes.size(); i += 4) {
    float value = normal(random);
    if (random() % 64 == 0) value = static_cast<float>(kValues[random() % 24]);
    std::memcpy(operand.bytes.data() + i, &value, sizeof value);
  }
}

// The same bytes as instruction by instruction.
void test_byte_chains(const TestedIsa& isa, std::mt19937& random) {
  for (const int64_t columns : {1, 3, 16, 37, 64, 100, 300, 1030}) {
    for (const int64_t gap : {0, 9}) {
      for (const auto dtype : {abi::DType::kFloat32, abi::DType::kUint8, abi::DType::kInt8}) {
        const auto code = static_cast<int32_t>(dtype);
        Builder chain = byte_chain_case(columns, columns + gap, code, false, random);
        Builder steps = byte_chain_case(columns, columns + gap, code, true, random);
        if (code == 0) fill_floats(chain.operands[0], random);
        for (const size_t i : {1, 2, 3}) fill_floats(chain.operands[i], random);
        for (size_t i = 0; i < 5; ++i) steps.operands[i].bytes = chain.operands[i].bytes;
        run_kernel(isa["pointwise"], chain.p, chain.operands, random);
        run_kernel(isa["pointwise"], steps.p, steps.operands, random);
        const auto got = elements_of(chain.operands.back(), chain.layouts.back(), chain.p.y_dtype);
        const auto want = elements_of(steps.operands.back(), steps.layouts.back(), steps.p.y_dtype);
        expect(got == want, "pointwise chain to bytes",
               std::to_string(columns) + " columns, dtype " + std::to_string(code));
      }
    }
  }
}

// x · s + b is rounded twice: what the product loses in rounding is a hundred steps of y here.
void test_chain_rounds_each_step(const TestedIsa& isa, std::mt19937& random) {
  Builder b(line(100), 3);
  for (int i = 0; i < 3; ++i) b.input(i, line(100), 0, kF, random);
  b.output(line(100), static_cast<int32_t>(abi::DType::kUint8), 0, kF, random);
  const double constants[] = {0x1p-40, 128, 0, 255};
  std::copy(std::begin(constants), std::end(constants), b.p.constants);
  b.add(Opcode::kMul, 0, {0, 1, 0}, kF);
  b.add(Opcode::kAdd, 0, {0, 2, 0}, kF);
  b.add(Opcode::kDiv, 0, {0, -1, 0}, kF);
  b.add(Opcode::kRound, 0, {0, 0, 0}, kF);
  b.add(Opcode::kAdd, 0, {0, -2, 0}, kF);
  b.add(Opcode::kClamp, 0, {0, -3, -4}, kF);
  for (int i = 0; i < 100; ++i) {
    const float x = 1 + 0x1p-20F * static_cast<float>(i + 1), s = 1 + 0x1p-21F;
    const volatile float product = x * s;
    const float values[] = {x, s, -product};
    for (size_t k = 0; k < 3; ++k) {
      std::memcpy(b.operands[k].bytes.data() + 4 * i, values + k, sizeof(float));
    }
  }
  run_kernel(isa["pointwise"], b.p, b.operands, random);
  for (const double y : numbers_of(b.operands.back(), b.p.y_dtype)) {
    expect(y == 128, "pointwise chain", "a product and a sum were rounded once");
  }
}

void test_refusals(const TestedIsa& isa, std::mt19937& random) {
  Builder b(line(100), 1);
  b.input(0, line(100), 0, kF, random);
  b.output(line(100), 0, 1, kF, random);
  b.add(Opcode::kExp, 1, {0, 0, 0}, kF);
  expect(refusal(isa["pointwise"], b.p, b.operands).empty(), "pointwise", "refuses sound ones");
  auto refused = [&](auto change, const char* what) {
    Params p = b.p;
    change(p);
    expect(!refusal(isa["pointwise"], p, b.operands).empty(), "pointwise accepts", what);
  };
  refused([](Params& p) { p.shape[0] = 101; }, "an element past the end");
  refused([](Params& p) { p.x_strides[0] = -1; }, "a stride before the buffer");
  refused([](Params& p) { p.code[0] = 45; }, "an opcode that does not exist");
  refused([](Params& p) { p.code[0] = int(Opcode::kBitwiseNot); }, "bits of a float");
  refused([](Params& p) { p.code[1] = 16; }, "a register past the last");
  refused([](Params& p) { p.code[2] = 2; }, "a register never written");
  refused([](Params& p) { p.code[2] = -65; }, "a constant past the last");
  refused([](Params& p) { p.code[5] = kD; }, "a register of another class");
  refused([](Params& p) { p.code[5] = 3; }, "a class that does not exist");
  refused([](Params& p) { p.result = 5; }, "a result never written");
  refused([](Params& p) { p.result_class = kI; }, "a result of another class");
  refused([](Params& p) { p.n_instructions = 65; }, "too many instructions");
  refused([](Params& p) { p.n_inputs = 13; }, "too many inputs");
  refused([](Params& p) { p.y_dtype = 10; }, "a dtype that does not exist");
  refused([](Params& p) { p.y_strides[0] = 0; }, "elements that collide");
}

void test_mutations(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 400; ++i) {
    const Builder b = random_case(random_shape(4, 600, random), random);
    run_mutations(isa["pointwise"], b.p, b.operands, 40, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"pointwise"})) {
    std::mt19937 random(2);
    test_opcodes(isa, random);
    test_remainders(isa, random);
    test_conversions(isa, random);
    test_integers(isa, random);
    test_division_by_zero(isa, random);
    test_programs(isa, random);
    test_one_value(isa, random);
    test_in_place(isa, random);
    test_byte_chains(isa, random);
    test_chain_rounds_each_step(isa, random);
    test_refusals(isa, random);
    test_mutations(isa, random);
    std::printf("%s: pointwise agrees\n", isa.name);
  }
}
