// Chains of a quantized model from one input to bytes, such as a norm's factors and terms and a
// ReLU before they are rounded. Numbers stay in registers from the first load to the stored byte,
// and rows are read where they lie. Results are those of the program's instructions one by one.
#pragma once

#include "kernels/cpu/pointwise_bytes.h"

namespace npusim::cpu::NPUSIM_ISA {

// One step: the number so far, and an input or (negative) a constant.
struct ChainStep {
  abi::Opcode op;
  int32_t other;
};

struct ByteChain {
  static constexpr int kMost = 6;
  int32_t x = -1;  // the input that it begins with; negative where a program is no chain
  int count = 0;
  ChainStep steps[kMost];
};

inline bool is_chain_input(const abi::PointwiseParams& p, int32_t arg) {
  const int32_t dtype = p.x_dtype[arg];
  return p.x_class[arg] == kClassF && (dtype == static_cast<int32_t>(abi::DType::kFloat32) ||
                                       dtype == static_cast<int32_t>(abi::DType::kUint8) ||
                                       dtype == static_cast<int32_t>(abi::DType::kInt8));
}

// What a program that ends so is before its end.
inline ByteChain byte_chain(const abi::PointwiseParams& p, const ByteEnd& end) {
  constexpr int32_t kRunning = -1, kUnknown = -2;
  if (end.instructions == 0) return {};
  int32_t held[abi::kPointwiseRegisters];  // an input, the number so far, or neither
  for (int32_t i = 0; i < abi::kPointwiseRegisters; ++i) {
    held[i] = i < p.n_inputs && is_chain_input(p, i) ? i : kUnknown;
  }
  ByteChain chain;
  const auto extend = [&](const Instruction& ins) {
    const bool alone = ins.op == abi::Opcode::kRelu;
    const bool pair =
        ins.op == abi::Opcode::kAdd || ins.op == abi::Opcode::kSub || ins.op == abi::Opcode::kMul;
    if ((!alone && !pair) || ins.compute != kClassF || chain.count == ByteChain::kMost)
      return false;
    const int32_t* args = ins.args;
    const auto what = [&](int32_t arg) { return arg < 0 ? kUnknown : held[arg]; };
    int at = 0;  // which operand goes on
    if (chain.count > 0 && what(args[0]) != kRunning) at = 1;
    if (at == 1 && (alone || ins.op == abi::Opcode::kSub)) return false;
    const int32_t from = what(args[at]), other = alone ? 0 : args[1 - at];
    if (chain.count == 0 ? from < 0 : from != kRunning) return false;
    if (other >= 0 && !alone && held[other] < 0) return false;
    if (chain.count == 0) chain.x = from;
    chain.steps[chain.count++] = {ins.op, alone || other < 0 ? other : held[other]};
    for (int32_t& h : held) h = h == kRunning ? kUnknown : h;
    held[ins.dst] = kRunning;
    return true;
  };
  for (int i = 0; i < p.n_instructions - end.instructions; ++i) {
    if (!extend(instruction(p, i))) return {};
  }
  if (chain.count == 0) chain.x = held[end.x];  // kUnknown: none
  return chain.count == 0 || held[end.x] == kRunning ? chain : ByteChain{};
}

// An operand along a row: floats, bytes, or one number for all.
struct ChainOperand {
  enum Form { kFloats, kUnsigned, kSigned, kOne } form;
  const void* at;
  float one;
};

// Vectors that go through the steps together: choosing a step takes longer than taking it.
inline constexpr int kChainVecs = kLanes == 8 ? 4 : 2;
using ChainVecs = Vec[kChainVecs];

inline void load_chain(const ChainOperand& o, int64_t i, ChainVecs& v) {
  const auto each = [&](auto f) __attribute__((always_inline)) {
    for (int k = 0; k < kChainVecs; ++k) v[k] = f(i + k * kLanes);
  };
  if (o.form == ChainOperand::kOne) {
    each([&](int64_t) { return broadcast(o.one); });
  } else if (o.form == ChainOperand::kFloats) {
    each([&](int64_t k) { return load(static_cast<const float*>(o.at) + k); });
  } else {
    const int32_t sign = o.form == ChainOperand::kSigned ? 0x80 : 0;
    each([&](int64_t k) {
      const IVec byte = load_bytes(static_cast<const uint8_t*>(o.at) + k);
      return __builtin_convertvector((byte ^ sign) - sign, Vec);
    });
  }
}

// A row's operands: x, and those of the steps.
struct ChainRow {
  ChainOperand x, others[ByteChain::kMost];
};

// The low bytes of several vectors, which lie beside each other.
template <int N>
inline void store_bytes(uint8_t* p, const IVec (&v)[N]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (N == 4) {
    const auto words = [](IVec a, IVec b) __attribute__((always_inline)) {
      return _mm256_packs_epi32((__m256i)(a & 0xFF), (__m256i)(b & 0xFF));
    };
    const __m256i bytes = _mm256_packus_epi16(words(v[0], v[1]), words(v[2], v[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(bytes, order));
    return;
  }
#endif
  for (int i = 0; i < N; ++i) store_bytes(p + i * kLanes, v[i]);
}

inline void run_steps(const ByteChain& chain, const ByteEnd& end, const ChainRow& row, int64_t i,
                      uint8_t* y) {
  ChainVecs v = {}, other = {};
  for (int s = -1; s < chain.count; ++s) {
    const abi::Opcode op = s < 0 ? abi::Opcode::kCopy : chain.steps[s].op;
    if (op != abi::Opcode::kRelu) load_chain(s < 0 ? row.x : row.others[s], i, other);
    // A step at a time, so that no product and sum become one instruction that rounds once.
    for (int k = 0; k < kChainVecs; ++k) {
      if (op == abi::Opcode::kMul) {
        v[k] *= other[k];
      } else if (op == abi::Opcode::kAdd) {
        v[k] += other[k];
      } else if (op == abi::Opcode::kSub) {
        v[k] -= other[k];
      } else {
        v[k] = op == abi::Opcode::kRelu ? relu(v[k]) : other[k];
      }
    }
  }
  IVec bytes[kChainVecs];
  for (int k = 0; k < kChainVecs; ++k) bytes[k] = end_bytes(end, v[k]);
  store_bytes(y, bytes);
}

// Bytes of n elements of a row. Those after the last whole vectors go through a copy.
[[gnu::noinline]] inline void run_chain(const ByteChain& chain, const ByteEnd& end,
                                        const ChainRow& row, int64_t n, uint8_t* y) {
  constexpr int64_t kTogether = kChainVecs * kLanes;
  float copies[ByteChain::kMost + 1][kTogether];
  uint8_t bytes[kTogether];
  ChainRow last = row;
  const int64_t whole = n / kTogether * kTogether, left = n - whole;
  const auto copy = [&](ChainOperand& o, float* to) {
    const int64_t size = o.form == ChainOperand::kFloats ? sizeof(float) : sizeof(uint8_t);
    if (o.form == ChainOperand::kOne) return;
    const auto* from = static_cast<const std::byte*>(o.at) + whole * size;
    std::memcpy(to, from, static_cast<size_t>(left * size));
    o.at = to;
  };
  for (int s = -1; left > 0 && s < chain.count; ++s) {
    if (s < 0 || chain.steps[s].op != abi::Opcode::kRelu)
      copy(s < 0 ? last.x : last.others[s], copies[s + 1]);
  }
  for (int64_t i = 0; i < n; i += kTogether) {
    const bool copied = i == whole;
    run_steps(chain, end, copied ? last : row, copied ? 0 : i, copied ? bytes : y + i);
  }
  if (left > 0) std::memcpy(y + whole, bytes, static_cast<size_t>(left));
}

}  // namespace npusim::cpu::NPUSIM_ISA
