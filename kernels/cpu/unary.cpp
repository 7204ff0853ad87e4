// A loop for each unary opcode of class "f" (unary.h).
#include "kernels/cpu/unary.h"

#include "kernels/cpu/math.h"

namespace npusim::cpu::NPUSIM_ISA {

void apply_to_rows(abi::Opcode op, const float* x, int64_t step, float* y, const int64_t* rows,
                   int64_t count, int64_t n) {
  const auto loop = [=](auto f) {
    for (int64_t r = 0; r < count; ++r) {
      const float* from = x + rows[r] * step;
      float* to = y + rows[r];
      for (int64_t i = 0; i < n; i += kLanes) store(to + i, f(load(from + i * step)));
    }
  };
  if (!with_unary(op, loop)) loop([](Vec v) -> Vec { return v; });
}

}  // namespace npusim::cpu::NPUSIM_ISA
