// One unary opcode of class "f" over many elements: the loops are compiled once for all kernels
// that have an activation, and the opcode is looked at once a call and not once a vector.
#pragma once

#include "kernels/cpu/simd.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
void apply_to_rows(abi::Opcode op, const float* x, int64_t step, float* y, const int64_t* rows,
                   int64_t count, int64_t n);
}
#endif

namespace npusim::cpu::NPUSIM_ISA {

// y[i] = op(x[i * step]) for i in rows[r] … rows[r] + n, r < count; the identity for an opcode that
// is none (math.h lists them). `n` is a multiple of kLanes; step is 1, or 0 where kLanes equal
// elements at x are all there is. y may be x.
#ifdef NPUSIM_BASE_ISA
using NPUSIM_BASE_ISA::apply_to_rows;
#else
void apply_to_rows(abi::Opcode op, const float* x, int64_t step, float* y, const int64_t* rows,
                   int64_t count, int64_t n);
#endif

// The same for one row, which begins at x and y.
inline void apply_to_row(abi::Opcode op, const float* x, int64_t step, float* y, int64_t n) {
  const int64_t first = 0;
  apply_to_rows(op, x, step, y, &first, 1, n);
}

}  // namespace npusim::cpu::NPUSIM_ISA
