// Every elementary function of kernels/cpu/math.h against the C library in double precision, over
// dense sweeps of all floats and at the special values, for the instruction set this file is
// compiled for. Prints the largest error of each; fails when one leaves its bound.
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numbers>
#include <vector>

#include "kernels/cpu/math.h"
#include "tests/cpp/isa_support.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using abi::Opcode;

struct Case {
  const char* name;
  Opcode op;
  double (*reference)(double);
  double relative;      // largest error relative to the exact value
  double absolute = 0;  // plus this much; for formulas that, as PyTorch's, cancel or underflow
};

double gelu_exact(double x) {
  return 0.5 * x * std::erfc(-x * (std::numbers::sqrt2 / 2));
}
double gelu_tanh_exact(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double clamp6(double x) {
  return x < 0 ? 0 : (x > 6 ? 6 : x);
}
double hardswish_exact(double x) {
  return x * clamp6(x + 3) / 6;
}
double hardsigmoid_exact(double x) {
  return clamp6(x + 3) / 6;
}
double softplus_exact(double x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}
double mish_exact(double x) {
  return x > 20 ? x : x * std::tanh(std::log1p(std::exp(x)));
}

const Case kCases[] = {
    {"copy", Opcode::kCopy, [](double x) { return x; }, 0},
    {"neg", Opcode::kNeg, [](double x) { return -x; }, 0},
    {"abs", Opcode::kAbs, [](double x) { return std::fabs(x); }, 0},
    {"exp", Opcode::kExp, [](double x) { return std::exp(x); }, 2e-7},
    {"exp2", Opcode::kExp2, [](double x) { return std::exp2(x); }, 2e-7},
    {"expm1", Opcode::kExpm1, [](double x) { return std::expm1(x); }, 2e-7},
    {"log", Opcode::kLog, [](double x) { return std::log(x); }, 2e-7},
    {"log1p", Opcode::kLog1p, [](double x) { return std::log1p(x); }, 2e-7},
    {"log2", Opcode::kLog2, [](double x) { return std::log2(x); }, 2e-7},
    {"log10", Opcode::kLog10, [](double x) { return std::log10(x); }, 2e-7},
    {"sqrt", Opcode::kSqrt, [](double x) { return std::sqrt(x); }, 6e-8},
    {"rsqrt", Opcode::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 1.3e-7},
    {"reciprocal", Opcode::kReciprocal, [](double x) { return 1 / x; }, 6e-8},
    {"sin", Opcode::kSin, [](double x) { return std::sin(x); }, 6.1e-8},
    {"cos", Opcode::kCos, [](double x) { return std::cos(x); }, 6.1e-8},
    {"tan", Opcode::kTan, [](double x) { return std::tan(x); }, 6.1e-8},
    {"asin", Opcode::kAsin, [](double x) { return std::asin(x); }, 2e-7},
    {"acos", Opcode::kAcos, [](double x) { return std::acos(x); }, 2e-7},
    {"atan", Opcode::kAtan, [](double x) { return std::atan(x); }, 2e-7},
    {"sinh", Opcode::kSinh, [](double x) { return std::sinh(x); }, 2.6e-7},
    {"cosh", Opcode::kCosh, [](double x) { return std::cosh(x); }, 2e-7},
    {"asinh", Opcode::kAsinh, [](double x) { return std::asinh(x); }, 3e-7},
    {"acosh", Opcode::kAcosh, [](double x) { return std::acosh(x); }, 3e-7},
    {"atanh", Opcode::kAtanh, [](double x) { return std::atanh(x); }, 3e-7},
    {"tanh", Opcode::kTanh, [](double x) { return std::tanh(x); }, 2e-7},
    {"sigmoid", Opcode::kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 2.5e-7, FLT_MIN},
    {"erf", Opcode::kErf, [](double x) { return std::erf(x); }, 2e-7},
    {"floor", Opcode::kFloor, [](double x) { return std::floor(x); }, 0},
    {"ceil", Opcode::kCeil, [](double x) { return std::ceil(x); }, 0},
    {"round", Opcode::kRound, [](double x) { return std::nearbyint(x); }, 0},
    {"trunc", Opcode::kTrunc, [](double x) { return std::trunc(x); }, 0},
    {"sign", Opcode::kSign, [](double x) { return double((x > 0) - (x < 0)); }, 0},
    {"relu", Opcode::kRelu, [](double x) { return x < 0 ? 0 : x; }, 0},
    {"gelu", Opcode::kGelu, gelu_exact, 2.5e-7, 1e-7},
    {"gelu_tanh", Opcode::kGeluTanh, gelu_tanh_exact, 4e-7, 3e-7},
    {"silu", Opcode::kSilu, [](double x) { return x / (1 + std::exp(-x)); }, 2.5e-7, 1e-36},
    {"hardswish", Opcode::kHardswish, hardswish_exact, 2e-7, 4e-7},
    {"hardsigmoid", Opcode::kHardsigmoid, hardsigmoid_exact, 2e-7, 6e-8},
    {"softplus", Opcode::kSoftplus, softplus_exact, 3e-7},
    {"mish", Opcode::kMish, mish_exact, 4e-7, 1e-36},
};

// Inputs where formulas change branch or limits apply.
const float kSpecial[] = {0.0F,    -0.0F,    1.0F,      -1.0F,    INFINITY, -INFINITY, NAN,
                          FLT_MIN, -FLT_MIN, FLT_MAX,   -FLT_MAX, 1e-45F,   -1e-45F,   0.5F,
                          -0.5F,   1.5F,     -1.5F,     2.5F,     88.72F,   88.73F,    89.41F,
                          -87.3F,  -103.9F,  -104.5F,   20.0F,    20.5F,    -3.0F,     3.0F,
                          -87.34F, -87.69F,  -88.03F,   86.5F,    -86.5F,   89.1F,     -89.1F,
                          8388608, -8388608, 8388607.5, 0.625F,   0.99999F, -0.99999F, 1.00001F,
                          1048576, 1048577,  1e10F,     3.14159F, 1.57080F, 2.41421F,  0.41421F};

double largest = 0;  // error of the current case, as a multiple of its bound

bool agrees(const Case& c, float x, float got) {
  const double exact = c.reference(x);
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) == std::isnan(got);
  if (std::isinf(static_cast<float>(exact)) || std::isinf(got)) {
    // At the edge of the range the last digit decides between FLT_MAX and infinity.
    return static_cast<double>(got) == exact || std::fabs(exact) > FLT_MAX * (1 - c.relative);
  }
  const double bound = c.relative * std::fabs(exact) + c.absolute + 0x1p-149 * 1.01;
  const double error = std::fabs(got - exact);
  largest = std::max(largest, error / bound);
  const bool same_sign = std::signbit(got) == std::signbit(exact);
  return error <= bound && (same_sign || got != 0 || exact != 0 || c.absolute > 0);
}

bool check(const Case& c, const std::vector<float>& inputs) {
  int failures = 0;
  largest = 0;
  for (size_t i = 0; i < inputs.size(); i += kLanes) {
    float out[kLanes];
    store(out, apply_unary(c.op, load(inputs.data() + i)));
    for (int lane = 0; lane < kLanes; ++lane) {
      if (agrees(c, inputs[i + lane], out[lane]) || ++failures > 5) continue;
      std::printf("  %s(%.9g) = %.9g, expected %.9g\n", c.name, inputs[i + lane], out[lane],
                  c.reference(inputs[i + lane]));
    }
  }
  std::printf("%-12s %5.1f%% of its bound%s\n", c.name, 100 * largest, failures ? "  FAILED" : "");
  return failures == 0;
}

// All floats at a stride that is coprime to powers of two, a dense grid about zero, the specials.
std::vector<float> sweep() {
  std::vector<float> inputs(std::begin(kSpecial), std::end(kSpecial));
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 3989)
    inputs.push_back(bits_to_float(static_cast<uint32_t>(bits)));
  for (int i = -200000; i <= 200000; ++i) inputs.push_back(static_cast<float>(i) * 5.23e-4F);
  while (inputs.size() % kLanes) inputs.push_back(1);
  return inputs;
}

// Softmax's exponential: that of what is not above zero, and no subnormals.
bool check_exp_of_nonpositive(const std::vector<float>& inputs) {
  const Case c{"exp, x <= 0", Opcode::kExp, [](double x) { return std::exp(x); }, 2e-7, FLT_MIN};
  int failures = 0;
  largest = 0;
  for (float x : inputs) {
    if (x > 0 || agrees(c, x, exp_of_nonpositive(broadcast(x))[kLanes - 1])) continue;
    if (++failures <= 5) std::printf("  exp_of_nonpositive(%.9g)\n", x);
  }
  std::printf("%-12s %5.1f%% of its bound%s\n", c.name, 100 * largest, failures ? "  FAILED" : "");
  return failures == 0;
}

// A function of two arguments over the products of `values`, and beside them random pairs.
bool check_binary(const char* name, Vec (*f)(Vec, Vec), double (*reference)(double, double),
                  double relative) {
  std::vector<float> values(std::begin(kSpecial), std::end(kSpecial));
  for (float x = 1e-3F; x < 1e3F; x *= 1.37F) values.insert(values.end(), {x, -x});
  for (int i = -7; i < 8; ++i) values.push_back(static_cast<float>(i));
  const Case c{name, Opcode::kCopy, nullptr, relative};
  int failures = 0;
  double worst = 0;
  for (float x : values) {
    for (float y : values) {
      const double exact = reference(x, y);
      const float got = f(broadcast(x), broadcast(y))[kLanes - 1];
      const float rounded = static_cast<float>(exact);
      bool good = std::isnan(exact) ? std::isnan(got) : got == rounded;
      if (!good && std::isfinite(rounded) && std::isfinite(got)) {
        const double error = std::fabs(got - exact);
        good = error <= c.relative * std::fabs(exact) + 0x1p-149 * 1.01;
        worst = std::max(worst, error / (c.relative * std::fabs(exact) + 0x1p-149));
      }
      if (good && !std::isnan(exact)) good = std::signbit(got) == std::signbit(exact);
      if (good || ++failures > 5) continue;
      std::printf("  %s(%.9g, %.9g) = %.9g, expected %.9g\n", name, x, y, got, exact);
    }
  }
  std::printf("%-12s %5.1f%% of its bound%s\n", name, 100 * worst, failures ? "  FAILED" : "");
  return failures == 0;
}

// Every half converts to its value and back; every float rounds to the nearest half, ties to even.
template <typename T>
bool check_storage(const char* name) {
  int failures = 0;
  for (uint32_t bits = 0; bits < 0x10000; bits += kLanes) {
    T in[kLanes], out[kLanes];
    float wide[kLanes];
    for (int i = 0; i < kLanes; ++i) in[i].bits = static_cast<uint16_t>(bits + i);
    store(wide, load(in));
    store(out, load(in));
    for (int i = 0; i < kLanes; ++i) {
      const float value = to_float(in[i]);
      const bool nan = std::isnan(value) && std::isnan(wide[i]) && std::isnan(to_float(out[i])) &&
                       std::isnan(to_float(from_float<T>(value)));
      failures += !nan && (float_to_bits(value) != float_to_bits(wide[i]) ||
                           out[i].bits != in[i].bits || from_float<T>(value).bits != in[i].bits);
    }
  }
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 7 * kLanes) {
    float in[kLanes];
    T out[kLanes];
    for (int i = 0; i < kLanes; ++i) in[i] = bits_to_float(static_cast<uint32_t>(bits + 7 * i));
    store(out, load(in));
    for (int i = 0; i < kLanes; ++i) {
      const T scalar = from_float<T>(in[i]);
      const bool nan =
          std::isnan(in[i]) && std::isnan(to_float(out[i])) && std::isnan(to_float(scalar));
      failures += !nan && scalar.bits != out[i].bits;
    }
    bits += 99991;
  }
  // Ties and the edges of the range, against the definition: no neighbour is nearer.
  for (uint32_t h = 0; h < 0x7F00; ++h) {
    const T low{static_cast<uint16_t>(h)}, high{static_cast<uint16_t>(h + 1)};
    if (!std::isfinite(to_float(high))) continue;
    const float middle = static_cast<float>((double{to_float(low)} + to_float(high)) / 2);
    failures += from_float<T>(middle).bits != (h % 2 ? high : low).bits;
  }
  std::printf("%-12s%s\n", name, failures ? " FAILED" : " exact");
  return failures == 0;
}

int run() {
  const std::vector<float> inputs = sweep();
  bool good = true;
  for (const Case& c : kCases) good &= check(c, inputs);
  good &= check_exp_of_nonpositive(inputs);
  good &= check_binary("pow", pow, [](double x, double y) { return std::pow(x, y); }, 6.2e-8);
  good &= check_binary("atan2", atan2, [](double y, double x) { return std::atan2(y, x); }, 3e-7);
  good &= check_storage<float16>("float16");
  good &= check_storage<bfloat16>("bfloat16");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace npusim::cpu::NPUSIM_ISA

int main() {
  if (!npusim::tests::processor_runs_this_file()) return npusim::tests::kSkipped;
  return npusim::cpu::NPUSIM_ISA::run();
}
