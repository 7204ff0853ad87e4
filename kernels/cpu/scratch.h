// How a kernel lays out its scratch: arrays one after another, each on its own cache lines. The
// same code that places the arrays measures them, over a null base.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/kernel.h"

namespace npusim::cpu::NPUSIM_ISA {

class Arena {
 public:
  explicit Arena(void* base) : base_(reinterpret_cast<uintptr_t>(base)) {}

  // The next `count` >= 0 elements; contents are whatever was there.
  template <typename T>
  T* take(int64_t count) {
    const int64_t at = bytes_;
    int64_t size = 0;
    if (__builtin_mul_overflow(count, int64_t{sizeof(T)}, &size) ||
        __builtin_add_overflow(bytes_, size, &bytes_) || bytes_ > kLimit) {
      bytes_ = kLimit;  // more than any machine has: the allocation fails, nothing is touched
    }
    bytes_ = (bytes_ + 63) / 64 * 64;
    return reinterpret_cast<T*>(base_ + static_cast<uintptr_t>(at));
  }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kLimit = int64_t{1} << 60;

  uintptr_t base_;
  int64_t bytes_ = 0;
};

}  // namespace npusim::cpu::NPUSIM_ISA
