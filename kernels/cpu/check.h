// What the kernels' check() functions are written with: sizes without overflow, dtype codes, and
// the proof that a strided walk stays inside its operand. A reason is a constant string that ends
// the runtime's sentence "command N (node) is malformed: …"; nullptr means sound.
//
// Typical use:
//   const auto& p = *static_cast<const abi::CopyParams*>(c.params);
//   if (const char* why = operand_count(c, 2)) return why;
//   if (const char* why = Region().dims(p.shape, p.x_strides, p.rank).reads(c, 0, size)) return
//   why; return Region().dims(p.shape, p.y_strides, p.rank).writes(c, 1, size);
#pragma once

#include <cstdint>

#include <initializer_list>

#include "kernels/cpu/distinct.h"
#include "kernels/cpu/kernel.h"

namespace npusim::cpu::NPUSIM_ISA {

// Bytes of an element of a dtype code; 0 for a code that does not exist.
inline int64_t element_size(int32_t dtype) {
  constexpr int8_t kSizes[] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1};
  return dtype >= 0 && dtype < 10 ? kSizes[dtype] : 0;
}
// float32, float16 or bfloat16: the dtypes that compute in float32.
inline bool is_float(int32_t dtype) {
  return dtype >= 0 && dtype <= 2;
}
inline bool is_index(int32_t dtype) {
  return dtype == static_cast<int32_t>(abi::DType::kInt64) ||
         dtype == static_cast<int32_t>(abi::DType::kInt32) ||
         dtype == static_cast<int32_t>(abi::DType::kUint8);
}
inline bool is_flag(int32_t value) {
  return value == 0 || value == 1;
}

inline const char* operand_count(const KernelCheck& c, size_t expected) {
  return c.operand_bytes.size() == expected && c.operand_before.size() == expected
             ? nullptr
             : "the number of operands does not fit the parameters";
}

// *total *= size; false when size is negative or the product leaves int64.
inline bool multiply(int64_t size, int64_t* total) {
  return size >= 0 && !__builtin_mul_overflow(*total, size, total);
}
// Product of sizes[0 … n), or -1 when one is negative or it leaves int64.
inline int64_t product(const int64_t* sizes, int64_t n) {
  int64_t total = 1;
  for (int64_t i = 0; i < n; ++i) {
    // A later 0 must not hide an overflow: other code multiplies in other orders.
    if (!multiply(sizes[i] == 0 ? 1 : sizes[i], &total)) return -1;
  }
  for (int64_t i = 0; i < n; ++i) total = sizes[i] == 0 ? 0 : total;
  return total;
}

// The steps of loops in each other, for work(): INT64_MAX where they leave int64. A loop around an
// empty one still runs, so an empty one counts once.
inline int64_t saturated(std::initializer_list<int64_t> sizes) {
  int64_t total = 1;
  for (const int64_t size : sizes) {
    if (size > 1 && __builtin_mul_overflow(total, size, &total)) total = INT64_MAX;
  }
  return total;
}
inline int64_t saturated(const int64_t* sizes, int64_t n) {
  int64_t total = 1;
  for (int64_t i = 0; i < n; ++i) total = saturated({total, sizes[i]});
  return total;
}

// `act` of an epilogue: an opcode that maps one float to one float, or clamp (its bounds are
// parameters).
inline bool is_activation(int32_t act) {
  if (act < 0 || act >= 128) return false;
  const auto op = static_cast<abi::Opcode>(act);
  if (op == abi::Opcode::kClamp) return true;
  return abi::kOpcodeArity[act] == 1 && op != abi::Opcode::kIsnan && op != abi::Opcode::kIsinf &&
         op != abi::Opcode::kLogicalNot && op != abi::Opcode::kBitwiseNot && op < abi::Opcode::kToF;
}

// The elements a strided walk visits, relative to its operand's first one. Not inlined: all kernels
// check with it, at load.
class Region {
 public:
  // Adds a dimension of `size` steps of `stride` elements. Strides that lead nowhere, of single and
  // empty dimensions, are held to the same bound as others: kernels calculate with them.
  [[gnu::noinline]] Region& dim(int64_t size, int64_t stride) {
    int64_t reach = 0;
    sound_ &= size >= 0 && !__builtin_mul_overflow(size > 1 ? size : 1, stride, &reach);
    sound_ &= reach >= -kMostReach && reach <= kMostReach;
    if (!sound_) return *this;
    reach_ += reach < 0 ? -reach : reach;
    sound_ &= reach_ <= kMostReach;
    if (size == 0) {
      empty_ = true;
      return *this;
    }
    sound_ &= multiply(size, &count_);
    const int64_t span = (size - 1) * stride;
    (span < 0 ? low_ : high_) += span;
    if (size > 1) {
      sound_ &= rank_ < OperandWalk::kMost;
      if (sound_) {
        sizes_[rank_] = size;
        strides_[rank_++] = stride;
      }
    }
    return *this;
  }
  [[gnu::noinline]] Region& dims(const int64_t* sizes, const int64_t* strides, int64_t rank) {
    sound_ &= rank >= 0 && rank <= abi::kRank;
    for (int64_t i = 0; sound_ && i < rank; ++i) dim(sizes[i], strides[i]);
    return *this;
  }

  // nullptr when all elements of `bytes` each lie inside the operand, aligned.
  [[gnu::noinline]] const char* reads(const KernelCheck& c, size_t operand, int64_t bytes) const {
    if (!sound_) return "a size or a stride is negative or too large";
    if (operand >= c.operand_bytes.size()) return "an operand is missing";
    if (c.operand_before[operand] % bytes != 0) return "an operand is not aligned to its dtype";
    record(c, operand, bytes);
    if (empty_) return nullptr;
    // In whole elements, so that nothing can overflow.
    if (high_ >= c.operand_bytes[operand] / bytes) return "an operand ends before its last element";
    if (low_ < -(c.operand_before[operand] / bytes)) return "a stride reaches before its buffer";
    return nullptr;
  }
  // As reads, and no two steps visit the same element, so that tasks do not write over each other.
  // Nor are there more elements than room for them, so a parameter cannot ask for more results than
  // its buffer justifies.
  [[gnu::noinline]] const char* writes(const KernelCheck& c, size_t operand, int64_t bytes) const {
    if (const char* why = reads(c, operand, bytes)) return why;
    if (empty_) return nullptr;
    if (count_ > c.operand_bytes[operand] / bytes + c.operand_before[operand] / bytes)
      return "an output is smaller than its elements";
    Digits digits;
    digits.dims(sizes_, strides_, rank_);
    return digits.distinct() ? nullptr : "an output's strides make elements collide";
  }

 private:
  // An operand that is looked at twice may be touched anywhere.
  void record(const KernelCheck& c, size_t operand, int64_t bytes) const {
    if (operand >= c.walks.size()) return;
    OperandWalk& walk = c.walks[operand];
    const bool again = walk.bytes != 0 || walk.count != 0;
    walk.bytes = again ? 0 : bytes;
    if (__builtin_add_overflow(walk.steps, count_, &walk.steps)) walk.steps = INT64_MAX;
    if (!empty_) walk.count = walk.steps;
    walk.rank = rank_;
    for (int i = 0; i < rank_; ++i) {
      walk.sizes[i] = sizes_[i];
      walk.strides[i] = strides_[i];
    }
  }

  // Elements that all dimensions together may lead away, one step beyond the last: far more than a
  // buffer has, and their bytes far from what int64 and an address hold.
  static constexpr int64_t kMostReach = int64_t{1} << 44;

  int64_t low_ = 0, high_ = 0, reach_ = 0, count_ = 1;
  int rank_ = 0;  // of the dimensions of more than one element
  int64_t sizes_[OperandWalk::kMost], strides_[OperandWalk::kMost];
  bool empty_ = false, sound_ = true;
};

}  // namespace npusim::cpu::NPUSIM_ISA
