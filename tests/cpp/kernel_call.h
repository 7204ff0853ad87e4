// Runs one CPU kernel the way the backend does, for the tests of kernels: once per instruction set
// this machine has, every task on its own, in an order that hides nothing, with scratch full of
// NaN (before each task, or before the first) and operands that end where the kernel says they do.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/cpu/isa.h"
#include "cpp/platform/memory.h"
#include "kernels/cpu/kernel.h"

namespace npusim::cpu {

// A set of kernels that was compiled and that this machine can run.
struct TestedIsa {
  const char* name;
  std::span<const KernelEntry* const> table;
  std::vector<std::string_view> tested;  // the only kernels that may be asked for
  const KernelEntry& operator[](std::string_view kernel) const {
    if (std::find(tested.begin(), tested.end(), kernel) != tested.end()) {
      for (const KernelEntry* entry : table) {
        if (entry && entry->name == kernel) return *entry;
      }
    }
    std::fprintf(stderr, "FAILED: %s has no kernel %s, or isas() was not told of it\n", name,
                 std::string(kernel).c_str());
    std::exit(1);
  }
};

// The sets that a test of these kernels runs, the plainest first. A set that takes all of them from
// a plainer one, as a tier that adds dot products takes most, would only run the same code again.
inline std::vector<TestedIsa> isas(std::initializer_list<std::string_view> kernels) {
  std::vector<TestedIsa> all;
  const std::vector<Isa> usable = usable_isas();
  for (auto isa = usable.rbegin(); isa != usable.rend(); ++isa) {
    const TestedIsa added = {isa->name.data(), isa->kernels(), kernels};
    const auto is_of = [&](const TestedIsa& plainer) {
      return std::all_of(kernels.begin(), kernels.end(),
                         [&](std::string_view k) { return &plainer[k] == &added[k]; });
    };
    if (std::none_of(all.begin(), all.end(), is_of)) all.push_back(added);
  }
  return all;
}

// A failed expectation ends the test program with the reason and the case that broke it.
[[noreturn]] inline void fail(const std::string& where, const std::string& why) {
  std::fprintf(stderr, "FAILED %s: %s\n", where.c_str(), why.c_str());
  std::exit(1);
}
inline void expect(bool holds, const std::string& where, const std::string& why) {
  if (!holds) fail(where, why);
}

// An operand's bytes, in a block of exactly that size so that sanitizers see any step outside.
struct Operand {
  std::vector<std::byte> bytes;
  int64_t offset = 0;  // of the operand within the bytes
};

inline KernelCheck make_check(const void* params, const std::vector<Operand>& operands,
                              std::vector<int64_t>& after, std::vector<int64_t>& before) {
  after.clear();
  before.clear();
  for (const Operand& o : operands) {
    after.push_back(static_cast<int64_t>(o.bytes.size()) - o.offset);
    before.push_back(o.offset);
  }
  return {params, after, before};
}

// What check() says, or "".
template <typename Params>
std::string refusal(const KernelEntry& kernel, const Params& params,
                    const std::vector<Operand>& operands) {
  std::vector<int64_t> after, before;
  const char* why = kernel.check(make_check(&params, operands, after, before));
  return why ? why : "";
}

class NoFailure final : public Failure {
 public:
  void report(const char* what, int64_t, int64_t) noexcept override { fail("kernel", what); }
};

template <typename Params>
void run_kernel(const KernelEntry& kernel, const Params& params, std::vector<Operand>& operands,
                std::mt19937& random) {
  expect(kernel.params_size == sizeof(Params), kernel.name, "its params_size is not the struct's");
  const std::string why = refusal(kernel, params, operands);
  expect(why.empty(), kernel.name, "check refused: " + why);
  const auto scratch_bytes = static_cast<size_t>(kernel.scratch(&params));
  void* scratch =
      scratch_bytes ? platform::take_aligned(64, (scratch_bytes + 63) / 64 * 64) : nullptr;
  std::vector<void*> pointers;
  for (Operand& o : operands) pointers.push_back(o.bytes.data() + o.offset);
  std::vector<int64_t> order(static_cast<size_t>(kernel.tasks(&params, 2)));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::shuffle(order.begin(), order.end(), random);
  NoFailure failure;
  const bool one_worker = random() % 2 == 0;  // … runs all tasks: scratch is as it left it
  bool first = true;
  for (const int64_t task : order) {
    if (scratch && first) std::memset(scratch, 0xFF, scratch_bytes);
    kernel.run({&params, pointers.data(), task, task + 1, scratch, &failure, first});
    first = !one_worker;
  }
  platform::release_aligned(scratch);
}

// The storage dtypes, converted by the plainest code there is: float 0, half 1, bfloat16 2.
inline int dtype_bytes(int32_t dtype) {
  return dtype == 0 ? 4 : 2;
}

inline float load_as(int32_t dtype, const std::byte* p) {
  float x;
  if (dtype == 0) {
    std::memcpy(&x, p, 4);
    return x;
  }
  uint16_t h;
  std::memcpy(&h, p, 2);
  if (dtype == 2) {
    const uint32_t bits = uint32_t{h} << 16;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  x = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
      : exponent == 31 ? (mantissa ? NAN : INFINITY)
                       : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return h & 0x8000 ? -x : x;
}

// A tensor of random values of few bits, exact in every storage dtype.
inline Operand random_operand(int32_t dtype, int64_t elements, std::mt19937& random) {
  Operand out;
  out.bytes.resize(static_cast<size_t>(elements * dtype_bytes(dtype)));
  for (int64_t i = 0; i < elements; ++i) {
    const float x = static_cast<float>(static_cast<int>(random() % 65) - 32) / 32.0F;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (dtype == 1 && x != 0) {
      half = static_cast<uint16_t>(((bits >> 16) & 0x8000) |
                                   (((bits >> 13) & 0x3FFFF) - (112 << 10)) % 0x8000);
    }
    std::byte* to = out.bytes.data() + i * dtype_bytes(dtype);
    dtype == 0 ? std::memcpy(to, &x, 4) : std::memcpy(to, &half, 2);
  }
  return out;
}

inline std::vector<double> values_of(const Operand& operand, int32_t dtype) {
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  std::vector<double> out(operand.bytes.size() / size);
  for (size_t i = 0; i < out.size(); ++i) out[i] = load_as(dtype, operand.bytes.data() + i * size);
  return out;
}

// What an epilogue makes of an exact sum, in double: the activations the tests use.
inline double reference_activation(abi::Opcode act, double x, double lo, double hi) {
  switch (act) {
    case abi::Opcode::kRelu:
      return std::max(x, 0.0);
    case abi::Opcode::kClamp:
      return std::min(std::max(x, lo), hi);
    case abi::Opcode::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case abi::Opcode::kSilu:
      return x / (1 + std::exp(-x));
    case abi::Opcode::kHardswish:
      return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
    case abi::Opcode::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case abi::Opcode::kTanh:
      return std::tanh(x);
    default:
      return x;
  }
}
inline constexpr abi::Opcode kTestedActivations[] = {
    abi::Opcode::kCopy, abi::Opcode::kRelu,    abi::Opcode::kClamp, abi::Opcode::kGelu,
    abi::Opcode::kSilu, abi::Opcode::kSigmoid, abi::Opcode::kTanh,  abi::Opcode::kHardswish};

// Compares against sums of `terms` products of values within [-1, 1].
inline void expect_close(double got, double want, int32_t dtype, double terms,
                         const std::string& where) {
  const double rounding = dtype == 0 ? 1e-6 : dtype == 1 ? 1e-3 : 8e-3;
  const double bound = rounding * (1 + std::abs(want)) + 1e-6 * std::sqrt(terms);
  if (!(std::abs(got - want) <= bound)) {
    fail(where, "got " + std::to_string(got) + ", expected " + std::to_string(want));
  }
}

}  // namespace npusim::cpu
