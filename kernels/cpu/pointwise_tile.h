// Runs a pointwise program over one tile: an interpreter whose every instruction is a loop over
// the tile's elements. Owns registers and instructions; where a tile comes from and goes to is
// pointwise.cpp's business.
#pragma once

#include <algorithm>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/scalar_ops.h"
#include "kernels/cpu/unary.h"

namespace npusim::cpu::NPUSIM_ISA {

// Elements of a tile at most. A float register then takes 4 KiB: the handful a chain needs stay in
// the first-level cache, and the cost of dispatch is spread over enough elements.
inline constexpr int64_t kTile = 1024;
// Room for a tile of the widest class. The odd cache lines keep registers out of each other's sets.
inline constexpr int64_t kRegisterBytes = kTile * 8 + 192;

// Where the elements of a register are now: its own storage, an operand's memory, or (step 0) one
// element repeated kLanes times. Storage and operands hold numbers of the register's class, and at
// least the tile's elements rounded up to whole vectors.
struct Register {
  const void* data;
  int64_t step;
};

struct Instruction {
  abi::Opcode op;
  int32_t dst;
  int32_t args[3];
  int32_t compute;
};

inline Instruction instruction(const abi::PointwiseParams& p, int i) {
  const int32_t* c = p.code + 6 * i;
  return {static_cast<abi::Opcode>(c[0]), c[1], {c[2], c[3], c[4]}, c[5]};
}

// What an instruction's result is: its operands' class, or "i" for tests, or what it converts to.
inline int32_t result_class(abi::Opcode op, int32_t compute) {
  using enum abi::Opcode;
  if (op == kToF) return kClassF;
  if (op == kToD) return kClassD;
  const bool tests = op == kIsnan || op == kIsinf || op == kLogicalNot || op == kToI ||
                     op == kToBool || op == kToI32 || (op >= kEq && op <= kLogicalXor);
  return tests ? kClassI : compute;
}

// Integer vectors as wide as half a Vec hold masks: 0 or 1 an element of class "i".
inline IVec load_mask(const int64_t* p) {
#if defined(__AVX512DQ__)  // halves that are stored and loaded as one would wait for memory
  const __m512i low = _mm512_loadu_si512(p), high = _mm512_loadu_si512(p + kDoubles);
  const __mmask8 first = _mm512_test_epi64_mask(low, low);
  const __mmask8 second = _mm512_test_epi64_mask(high, high);
  return (IVec)_mm512_movm_epi32(_mm512_kunpackb(second, first));
#elif defined(__AVX2__)
  const __m256i* at = reinterpret_cast<const __m256i*>(p);
  const __m256i first = _mm256_cmpeq_epi64(_mm256_loadu_si256(at), __m256i{});
  const __m256i second = _mm256_cmpeq_epi64(_mm256_loadu_si256(at + 1), __m256i{});
  const __m256 halves = _mm256_shuffle_ps((__m256)first, (__m256)second, 0x88);
  return ~(IVec)_mm256_permute4x64_epi64((__m256i)halves, 0xD8);
#else
  using Narrow = VectorOf<int32_t, kDoubles>;
  using Wide = VectorOf<int64_t, kDoubles>::unaligned;
  int32_t lanes[kLanes];
  for (int i = 0; i < kLanes; i += kDoubles) {
    const LVec wide = *reinterpret_cast<const Wide*>(p + i) != 0;
    *reinterpret_cast<Narrow::unaligned*>(lanes + i) = __builtin_convertvector(wide, Narrow::type);
  }
  IVec mask;
  std::memcpy(&mask, lanes, sizeof mask);
  return mask;
#endif
}
inline void store_mask(int64_t* p, IVec mask) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i bits = (__m256i)(mask & 1);
  __m256i* to = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(to, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(bits)));
  _mm256_storeu_si256(to + 1, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(bits, 1)));
#else
  using Narrow = VectorOf<int32_t, kDoubles>;
  using Wide = VectorOf<int64_t, kDoubles>::unaligned;
  int32_t lanes[kLanes];
  const IVec bits = mask & 1;
  std::memcpy(lanes, &bits, sizeof lanes);
  for (int i = 0; i < kLanes; i += kDoubles) {
    const auto half = *reinterpret_cast<const Narrow::unaligned*>(lanes + i);
    *reinterpret_cast<Wide*>(p + i) =
        __builtin_convertvector(static_cast<typename Narrow::type>(half), LVec);
  }
#endif
}

// The opcode as a compile-time constant, so that the loop inside f is the operation's own.
template <abi::Opcode kOp>
struct Constant {
  static constexpr abi::Opcode value = kOp;
};
template <int kFirst, int kCount, int kAt = 0, typename F>
inline void with_opcode(abi::Opcode op, F&& f) {
  if constexpr (kAt < kCount) {
    constexpr auto code = static_cast<abi::Opcode>(kFirst + kAt);
    if (op == code) return f(Constant<code>{});
    return with_opcode<kFirst, kCount, kAt + 1>(op, f);
  }
}

// A tile's registers and the loops over them.
class TileMachine {
 public:
  // `storage` has room for `registers` registers and a spare one.
  TileMachine(const abi::PointwiseParams& p, void* storage, int32_t registers, Failure* failure)
      : p_(p), storage_(static_cast<std::byte*>(storage)), failure_(failure), spare_(registers) {
    for (int32_t i = 0; i < abi::kPointwiseRegisters; ++i) slot_[i] = i;
  }

  void* storage(int32_t index) const { return storage_ + slot_[index] * kRegisterBytes; }
  void set(int32_t index, Register value) { registers_[index] = value; }
  Register get(int32_t index) const { return registers_[index]; }

  // Executes the program's first `count` instructions over n elements. The last instruction writes
  // `direct` instead of its register when that is not null; direct has room for n rounded up to
  // whole vectors.
  void execute(int count, int64_t n, void* direct) {
    for (int i = 0; i < count; ++i) {
      const Instruction ins = instruction(p_, i);
      if (overwrites_unread(ins)) {
        const int32_t slot = slot_[ins.dst];
        slot_[ins.dst] = spare_;
        spare_ = slot;
      }
      void* out = direct && i + 1 == p_.n_instructions ? direct : storage(ins.dst);
      execute(ins, out, n);
      registers_[ins.dst] = {out, 1};
    }
  }

 private:
  // Whether the result would land on operands still to be read: it has another width, or the
  // operand is one value that all elements read.
  bool overwrites_unread(const Instruction& ins) const {
    const bool widens = result_class(ins.op, ins.compute) != ins.compute;
    const bool moves = widens || ins.op == abi::Opcode::kWhere || registers_[ins.dst].step == 0;
    bool reads = false;
    for (int k = 0; k < abi::kOpcodeArity[static_cast<int>(ins.op)]; ++k)
      reads |= ins.args[k] == ins.dst;
    return reads && moves;
  }

  // Room for the constants of one instruction, one a cache line.
  struct Constants {
    alignas(64) int64_t block[3][kLanes];
  };

  template <typename C>
  Register operand(int32_t arg, C* block) const {
    if (arg >= 0) return registers_[arg];
    C value;
    if constexpr (__is_same(C, int64_t)) {
      value = p_.int_constants[-1 - arg];
    } else {
      value = static_cast<C>(p_.constants[-1 - arg]);
    }
    for (int i = 0; i < kLanes; ++i) block[i] = value;
    return {block, 0};
  }
  // Operand k of an instruction whose operands are of class C.
  template <typename C>
  Register operand(const Instruction& ins, int k, Constants* constants) const {
    return operand(ins.args[k], reinterpret_cast<C*>(constants->block[k]));
  }

  void execute(const Instruction& ins, void* out, int64_t n);
  void execute_float(const Instruction& ins, void* out, int64_t n);
  bool raise_to_constant(const Instruction& ins, float* out, int64_t n);
  void binary_float(const Instruction& ins, float* out, int64_t n);
  void relation_float(const Instruction& ins, int64_t* out, int64_t n);
  void test_float(const Instruction& ins, int64_t* out, int64_t n);
  void ternary_float(const Instruction& ins, float* out, int64_t n);
  template <typename C>
  void execute_scalar(const Instruction& ins, void* out, int64_t n);
  template <typename C>
  void ternary_scalar(const Instruction& ins, C* out, int64_t n);
  template <typename C>
  void convert(const Instruction& ins, void* out, int64_t n);

  const abi::PointwiseParams& p_;
  std::byte* storage_;
  Failure* failure_;
  int32_t slot_[abi::kPointwiseRegisters];  // where each register's storage is
  int32_t spare_;
  Register registers_[abi::kPointwiseRegisters] = {};
};

// ---- class "f": whole vectors; the last one may compute on padding

template <typename F>
inline void map(Register a, float* out, int64_t n, F f) {
  const auto* x = static_cast<const float*>(a.data);
  for (int64_t i = 0; i < n; i += kLanes) store(out + i, f(load(x + i * a.step)));
}
template <typename F>
inline void map(Register a, Register b, float* out, int64_t n, F f) {
  const auto* x = static_cast<const float*>(a.data);
  const auto* y = static_cast<const float*>(b.data);
  for (int64_t i = 0; i < n; i += kLanes)
    store(out + i, f(load(x + i * a.step), load(y + i * b.step)));
}

template <typename F>
inline Vec each_lane(Vec a, Vec b, F f) {
  for (int i = 0; i < kLanes; ++i) a[i] = f(a[i], b[i]);
  return a;
}
// In doubles a quotient below 2^28 is cut off where it should be: one that is not whole is further
// from the next whole number than rounding moves it. What is left of a then is exact. Others, and
// what is no number, lane by lane.
inline Vec fmod(Vec a, Vec b) {
  using Half = VectorOf<float, kDoubles>;
  using Whole = VectorOf<int32_t, kDoubles>::type;
  const IVec near = (abs(a / b) < 0x1p27f) & (abs(b) < kInfinity);
  if (any(~near)) {
    return each_lane(a, b, [](float x, float y) { return __builtin_fmodf(x, y); });
  }
  float left[kLanes], divisors[kLanes];
  store(left, a);
  store(divisors, b);
  for (int i = 0; i < kLanes; i += kDoubles) {
    auto* half = reinterpret_cast<Half::unaligned*>(left + i);
    const auto* divisor = reinterpret_cast<const Half::unaligned*>(divisors + i);
    const DVec x = __builtin_convertvector(static_cast<typename Half::type>(*half), DVec);
    const DVec y = __builtin_convertvector(static_cast<typename Half::type>(*divisor), DVec);
    const DVec whole = __builtin_convertvector(__builtin_convertvector(x / y, Whole), DVec);
    *half = __builtin_convertvector(x - whole * y, typename Half::type);
  }
  return copysign(load(left), a);
}
// As of single numbers in scalar_ops.h.
inline Vec remainder_of(Vec mod, Vec b) {
  return ((mod != 0.0f) & ((b < 0.0f) != (mod < 0.0f))) ? mod + b : mod;
}
inline Vec floor_divide(Vec a, Vec b, Vec mod) {
  const Vec exact = a / b;
  Vec quotient = (a - mod) / b;
  quotient = ((mod != 0.0f) & ((b < 0.0f) != (mod < 0.0f))) ? quotient - 1.0f : quotient;
  const Vec whole = floor(quotient);
  const Vec nearest = quotient - whole > 0.5f ? whole + 1.0f : whole;
  const Vec found = quotient == 0.0f ? copysign(Vec{}, exact) : nearest;
  return b == 0.0f ? exact : found;
}

// Powers with the exponents that have a cheaper form, chosen as PyTorch does.
inline bool TileMachine::raise_to_constant(const Instruction& ins, float* out, int64_t n) {
  if (ins.args[1] >= 0) return false;
  Constants constants;
  const Register x = operand<float>(ins, 0, &constants);
  const auto exponent = static_cast<float>(p_.constants[-1 - ins.args[1]]);
  if (exponent == 2.0f) return map(x, out, n, [](Vec v) { return v * v; }), true;
  if (exponent == 3.0f) return map(x, out, n, [](Vec v) { return v * v * v; }), true;
  if (exponent == 0.5f) return map(x, out, n, [](Vec v) { return sqrt(v); }), true;
  if (exponent == -0.5f) return map(x, out, n, [](Vec v) { return rsqrt(v); }), true;
  if (exponent == -1.0f) return map(x, out, n, [](Vec v) { return 1.0f / v; }), true;
  if (exponent == -2.0f) return map(x, out, n, [](Vec v) { return 1.0f / (v * v); }), true;
  return false;
}

inline void TileMachine::binary_float(const Instruction& ins, float* out, int64_t n) {
  using enum abi::Opcode;
  Constants constants;
  const Register a = operand<float>(ins, 0, &constants), b = operand<float>(ins, 1, &constants);
  switch (ins.op) {
    case kAdd:
      return map(a, b, out, n, [](Vec x, Vec y) { return x + y; });
    case kSub:
      return map(a, b, out, n, [](Vec x, Vec y) { return x - y; });
    case kMul:
      return map(a, b, out, n, [](Vec x, Vec y) { return x * y; });
    case kDiv:
      return map(a, b, out, n, [](Vec x, Vec y) { return x / y; });
    case kDivTrunc:
      return map(a, b, out, n, [](Vec x, Vec y) { return trunc(x / y); });
    case kDivFloor:
      return map(a, b, out, n, [](Vec x, Vec y) { return floor_divide(x, y, fmod(x, y)); });
    case kRemainder:
      return map(a, b, out, n, [](Vec x, Vec y) { return remainder_of(fmod(x, y), y); });
    case kFmod:
      return map(a, b, out, n, [](Vec x, Vec y) { return fmod(x, y); });
    case kPow:
      if (raise_to_constant(ins, out, n)) return;
      return map(a, b, out, n, [](Vec x, Vec y) { return pow(x, y); });
    case kMaximum:
      return map(a, b, out, n, [](Vec x, Vec y) { return maximum(x, y); });
    case kMinimum:
      return map(a, b, out, n, [](Vec x, Vec y) { return minimum(x, y); });
    default:
      return map(a, b, out, n, [](Vec y, Vec x) { return atan2(y, x); });
  }
}

inline void TileMachine::relation_float(const Instruction& ins, int64_t* out, int64_t n) {
  using enum abi::Opcode;
  Constants constants;
  const Register a = operand<float>(ins, 0, &constants), b = operand<float>(ins, 1, &constants);
  const auto relate = [&](auto f) {
    const auto* x = static_cast<const float*>(a.data);
    const auto* y = static_cast<const float*>(b.data);
    for (int64_t i = 0; i < n; i += kLanes)
      store_mask(out + i, f(load(x + i * a.step), load(y + i * b.step)));
  };
  switch (ins.op) {
    case kEq:
      return relate([](Vec x, Vec y) -> IVec { return x == y; });
    case kNe:
      return relate([](Vec x, Vec y) -> IVec { return x != y; });
    case kLt:
      return relate([](Vec x, Vec y) -> IVec { return x < y; });
    case kLe:
      return relate([](Vec x, Vec y) -> IVec { return x <= y; });
    case kGt:
      return relate([](Vec x, Vec y) -> IVec { return x > y; });
    case kGe:
      return relate([](Vec x, Vec y) -> IVec { return x >= y; });
    case kLogicalAnd:
      return relate([](Vec x, Vec y) -> IVec { return (x != 0.0f) & (y != 0.0f); });
    case kLogicalOr:
      return relate([](Vec x, Vec y) -> IVec { return (x != 0.0f) | (y != 0.0f); });
    default:
      return relate([](Vec x, Vec y) -> IVec { return (x != 0.0f) ^ (y != 0.0f); });
  }
}

inline void TileMachine::test_float(const Instruction& ins, int64_t* out, int64_t n) {
  Constants constants;
  const Register a = operand<float>(ins, 0, &constants);
  const auto test = [&](auto f) {
    const auto* x = static_cast<const float*>(a.data);
    for (int64_t i = 0; i < n; i += kLanes) store_mask(out + i, f(load(x + i * a.step)));
  };
  switch (ins.op) {
    case abi::Opcode::kIsnan:
      return test([](Vec x) -> IVec { return x != x; });
    case abi::Opcode::kIsinf:
      return test([](Vec x) -> IVec { return abs(x) == kInfinity; });
    case abi::Opcode::kLogicalNot:
      return test([](Vec x) -> IVec { return x == 0.0f; });
    default:
      return test([](Vec x) -> IVec { return x != 0.0f; });
  }
}

inline void TileMachine::ternary_float(const Instruction& ins, float* out, int64_t n) {
  Constants constants;
  const bool where = ins.op == abi::Opcode::kWhere;
  const Register a =
      where ? operand<int64_t>(ins, 0, &constants) : operand<float>(ins, 0, &constants);
  const Register b = operand<float>(ins, 1, &constants), c = operand<float>(ins, 2, &constants);
  const auto* y = static_cast<const float*>(b.data);
  const auto* z = static_cast<const float*>(c.data);
  if (where) {
    const auto* mask = static_cast<const int64_t*>(a.data);
    for (int64_t i = 0; i < n; i += kLanes)
      store(out + i, load_mask(mask + i * a.step) ? load(y + i * b.step) : load(z + i * c.step));
    return;
  }
  const auto* x = static_cast<const float*>(a.data);
  const auto combine = [&](auto f) {
    for (int64_t i = 0; i < n; i += kLanes)
      store(out + i, f(load(x + i * a.step), load(y + i * b.step), load(z + i * c.step)));
  };
  if (ins.op == abi::Opcode::kFma) return combine([](Vec u, Vec v, Vec w) { return u * v + w; });
  combine([](Vec v, Vec lo, Vec hi) { return minimum(maximum(v, lo), hi); });
}

inline void TileMachine::execute_float(const Instruction& ins, void* out, int64_t n) {
  const int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
  if (result_class(ins.op, kClassF) == kClassI) {
    if (abi::kOpcodeArity[static_cast<int>(ins.op)] == 1)
      return test_float(ins, static_cast<int64_t*>(out), padded);
    return relation_float(ins, static_cast<int64_t*>(out), padded);
  }
  auto* y = static_cast<float*>(out);
  if (ins.op >= abi::Opcode::kWhere) return ternary_float(ins, y, padded);
  if (ins.op >= abi::Opcode::kAdd) return binary_float(ins, y, padded);
  Constants constants;
  const Register a = operand<float>(ins, 0, &constants);
  apply_to_row(ins.op, static_cast<const float*>(a.data), a.step, y, padded);
}

// ---- classes "d" and "i": one element at a time; exactly n, as division by zero is reported

template <typename C>
inline void TileMachine::ternary_scalar(const Instruction& ins, C* out, int64_t n) {
  Constants constants;
  const bool where = ins.op == abi::Opcode::kWhere;
  const Register a = where ? operand<int64_t>(ins, 0, &constants) : operand<C>(ins, 0, &constants);
  const Register b = operand<C>(ins, 1, &constants), c = operand<C>(ins, 2, &constants);
  const auto* y = static_cast<const C*>(b.data);
  const auto* z = static_cast<const C*>(c.data);
  if (where) {
    const auto* mask = static_cast<const int64_t*>(a.data);
    for (int64_t i = 0; i < n; ++i) out[i] = mask[i * a.step] ? y[i * b.step] : z[i * c.step];
    return;
  }
  const auto* x = static_cast<const C*>(a.data);
  for (int64_t i = 0; i < n; ++i) {
    const C u = x[i * a.step], v = y[i * b.step], w = z[i * c.step];
    if (ins.op == abi::Opcode::kClamp) {
      out[i] = minimum(maximum(u, v), w);
    } else if constexpr (__is_same(C, double)) {
      out[i] = u * v + w;
    }
  }
}

template <typename C>
inline void TileMachine::execute_scalar(const Instruction& ins, void* out, int64_t n) {
  using enum abi::Opcode;
  auto* y = static_cast<C*>(out);
  auto* flags = static_cast<int64_t*>(out);
  if (ins.op >= kWhere) return ternary_scalar(ins, y, n);
  Constants constants;
  const Register a = operand<C>(ins, 0, &constants);
  const auto* x = static_cast<const C*>(a.data);
  const bool relation = result_class(ins.op, ins.compute) != ins.compute ||
                        (ins.op >= kEq && ins.op <= kLogicalXor) || ins.op == kLogicalNot;
  if (ins.op < kAdd) {
    if (relation) {
      for (int64_t i = 0; i < n; ++i) flags[i] = apply_test(ins.op, x[i * a.step]);
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = apply_unary(ins.op, x[i * a.step]);
    }
    return;
  }
  const Register b = operand<C>(ins, 1, &constants);
  const auto* z = static_cast<const C*>(b.data);
  if (relation) {
    with_opcode<static_cast<int>(kEq), 9>(ins.op, [&](auto op) {
      for (int64_t i = 0; i < n; ++i)
        flags[i] = apply_relation(op.value, x[i * a.step], z[i * b.step]);
    });
    return;
  }
  with_opcode<static_cast<int>(kAdd), 26>(ins.op, [&](auto op) {
    for (int64_t i = 0; i < n; ++i)
      y[i] = apply_binary(op.value, x[i * a.step], z[i * b.step], failure_);
  });
}

// Rounds class "f" to a 16-bit float and back.
template <typename T>
inline void round_to(const float* x, int64_t step, float* y, int64_t n) {
  T stored[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    encode_run(x + i * step, step, count, stored, 1);
    decode_run(stored, 1, count, y + i);
  }
}

// The opcodes whose names begin with "to_": from class C to what the name says.
template <typename C>
inline void TileMachine::convert(const Instruction& ins, void* out, int64_t n) {
  using enum abi::Opcode;
  Constants constants;
  const Register a = operand<C>(ins, 0, &constants);
  const auto* x = static_cast<const C*>(a.data);
  if constexpr (__is_same(C, float)) {
    auto* y = static_cast<float*>(out);
    if (ins.op == kToF16) return round_to<float16>(x, a.step, y, n);
    if (ins.op == kToBf16) return round_to<bfloat16>(x, a.step, y, n);
  }
  if (ins.op == kToI32) {
    auto* y = static_cast<int64_t*>(out);
    for (int64_t i = 0; i < n; ++i) y[i] = encode<int32_t>(x[i * a.step]);
    return;
  }
  if (ins.op == kToBool) {
    auto* y = static_cast<int64_t*>(out);
    if (a.step == 0) {
      std::fill_n(y, n, int64_t{x[0] != 0});
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = x[i] != 0;
    }
    return;
  }
  with_class(result_class(ins.op, ins.compute), [&](auto type) {
    using To = decltype(type);
    auto* y = static_cast<To*>(out);
    for (int64_t i = 0; i < n; ++i) y[i] = decode<To>(x[i * a.step]);
  });
}

inline void TileMachine::execute(const Instruction& ins, void* out, int64_t n) {
  if (ins.op >= abi::Opcode::kToF && ins.op <= abi::Opcode::kToBf16) {
    return with_class(ins.compute, [&](auto type) { convert<decltype(type)>(ins, out, n); });
  }
  if (ins.compute == kClassF) return execute_float(ins, out, n);
  if (ins.compute == kClassD) return execute_scalar<double>(ins, out, n);
  execute_scalar<int64_t>(ins, out, n);
}

}  // namespace npusim::cpu::NPUSIM_ISA
