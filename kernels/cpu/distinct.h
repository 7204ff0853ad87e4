// The proof that a strided walk never visits an address twice: what an output needs, so that tasks
// do not write over each other.
#pragma once

#include "kernels/cpu/kernel.h"

namespace npusim::cpu::NPUSIM_ISA {

// Dimensions of a walk, read as the digits of its addresses. Sizes and strides must have passed
// Region (check.h): their spans do not overflow.
class Digits {
 public:
  Digits& dim(int64_t size, int64_t stride) {
    if (size > 1) {
      int i = count_++;
      const int64_t step = stride < 0 ? -stride : stride;
      for (; i > 0 && steps_[i - 1] > step; --i) {
        steps_[i] = steps_[i - 1];
        sizes_[i] = sizes_[i - 1];
      }
      steps_[i] = step;
      sizes_[i] = size;
    }
    empty_ |= size <= 0;
    return *this;
  }
  Digits& dims(const int64_t* sizes, const int64_t* strides, int64_t rank) {
    for (int64_t d = 0; d < rank; ++d) dim(sizes[d], strides[d]);
    return *this;
  }

  // True when every step is longer than all that the smaller steps reach together. (Some walks
  // that do not collide fail this; no tensor whose dimensions nest does.)
  bool distinct() const {
    int64_t reach = 0;
    for (int i = 0; !empty_ && i < count_; ++i) {
      if (steps_[i] <= reach) return false;
      reach += (sizes_[i] - 1) * steps_[i];
    }
    return true;
  }

 private:
  static constexpr int kMost = OperandWalk::kMost;

  int count_ = 0;
  bool empty_ = false;
  int64_t sizes_[kMost], steps_[kMost];
};

}  // namespace npusim::cpu::NPUSIM_ISA
