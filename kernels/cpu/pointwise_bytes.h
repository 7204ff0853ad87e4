// How chains of quantized models end: clamp(round(x / scale) + zero, low, high), stored as bytes.
// The instructions and the store are one loop here, of the same results.
#pragma once

#include "kernels/cpu/pointwise_tile.h"

namespace npusim::cpu::NPUSIM_ISA {

// The end of a program. Zero points and bounds are whole numbers, and small.
struct ByteEnd {
  int instructions = 0;  // that it stands for; 0 where a program ends otherwise
  int32_t x = 0;         // the register that is divided
  float scale = 1;
  float low = 0, high = 0;  // of the quotient
  int32_t zero = 0;
};

inline ByteEnd byte_end(const abi::PointwiseParams& p) {
  constexpr double kLargest = 0x1p15;
  const bool bytes = p.y_dtype == static_cast<int32_t>(abi::DType::kUint8) ||
                     p.y_dtype == static_cast<int32_t>(abi::DType::kInt8);
  if (!bytes || p.result_class != kClassF) return {};
  ByteEnd end;
  int at = p.n_instructions;
  int32_t wanted = p.result;  // the register that the instruction before makes
  double constants[2] = {};
  const auto steps_back = [&](abi::Opcode op, int count) {
    if (at == 0) return false;
    const Instruction ins = instruction(p, at - 1);
    if (ins.op != op || ins.compute != kClassF || ins.dst != wanted || ins.args[0] < 0)
      return false;
    for (int i = 0; i < count; ++i) {
      if (ins.args[1 + i] >= 0) return false;
      constants[i] = p.constants[-1 - ins.args[1 + i]];
    }
    wanted = ins.args[0];
    --at;
    return true;
  };
  const auto whole = [](double x) {
    return x >= -kLargest && x <= kLargest && x == static_cast<double>(static_cast<int32_t>(x));
  };
  if (!steps_back(abi::Opcode::kClamp, 2) || !whole(constants[0]) || !whole(constants[1]))
    return {};
  const double low = constants[0], high = constants[1];
  if (low > high) return {};
  if (steps_back(abi::Opcode::kAdd, 1)) {
    if (!whole(constants[0])) return {};
    end.zero = static_cast<int32_t>(constants[0]);
  }
  if (!steps_back(abi::Opcode::kRound, 0) || !steps_back(abi::Opcode::kDiv, 1)) return {};
  end.scale = static_cast<float>(constants[0]);
  end.x = wanted;
  end.low = static_cast<float>(low - end.zero);
  end.high = static_cast<float>(high - end.zero);
  end.instructions = p.n_instructions - at;
  return end;
}

// Bounds are whole, so that quotients may be held to them before they are rounded. What is NaN
// becomes 0, as where it is converted.
inline IVec end_bytes(const ByteEnd& end, Vec v) {
  const Vec quotient = v / broadcast(end.scale);
  const Vec held = lesser(broadcast(end.high), greater(broadcast(end.low), quotient));
  const IVec number = quotient == quotient;
  return wrapping_sum(reinterpret_cast<IVec>(held + kNoFraction), IVec{} + end.zero) & number;
}

inline void store_byte_end(const ByteEnd& end, Register x, int64_t n, uint8_t* y) {
  const auto* from = static_cast<const float*>(x.data);
  const ByteEnd held = end;  // stores of bytes could change what a reference shows
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bytes(y + i, end_bytes(held, load(from + i * x.step)));
  if (i == n) return;
  const Vec last = x.step ? load_part(from + i, n - i) : load(from);
  store_bytes_part(y + i, end_bytes(held, last), n - i);
}

}  // namespace npusim::cpu::NPUSIM_ISA
