// Finishing sums that lie in memory, in every dtype and with every activation. A set that only adds
// dot products takes it from the set below it.
#include "kernels/cpu/epilogue.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

template <typename Y, typename R>
void finish_row(const Output& out, const float* sums, Y* y, const R* residual, const float* bias,
                int64_t columns) {
  const float* factor = out.more > 0 ? bias + out.vector : nullptr;
  const float* offset = out.more > 1 ? factor + out.vector : nullptr;
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t n = columns - c;
    Vec v = load(sums + c);
    if (factor) v *= load_some(factor + c, n);
    if (bias) v += load_some(bias + c, n);
    if (out.residual_mode == kBeforeActivation) v += load_some(residual + c, n);
    v = activate(v, out);
    if (out.residual_mode == kAfterActivation) v += load_some(residual + c, n);
    if (offset) v += load_some(offset + c, n);
    if (n >= kLanes) {
      store(y + c, v);
    } else {
      store_part(y + c, v, n);
    }
  }
}

}  // namespace

void finish(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns,
            const float* sums, int64_t stride) {
  with_float_type(out.y_dtype, [&](auto y_type) {
    with_float_type(out.r_dtype, [&](auto r_type) {
      using Y = decltype(y_type);
      using R = decltype(r_type);
      const float* bias = out.bias ? out.bias + column : nullptr;
      for (int64_t r = 0; r < rows; ++r) {
        Y* y = static_cast<Y*>(out.y) + out.y_rows[row + r] + column;
        const R* residual = out.residual_mode == kNoResidual ? nullptr
                                                             : static_cast<const R*>(out.residual) +
                                                                   out.r_rows[row + r] + column;
        finish_row(out, sums + r * stride, y, residual, bias, columns);
      }
    });
  });
}

}  // namespace npusim::cpu::NPUSIM_ISA
