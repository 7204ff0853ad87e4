// linear of the RMS norm of one row of x: unwritten_operands and paths as in linear.cu, NPUSIM_PATH
// 0 or 5.
namespace npusim {
constexpr bool kNormed = true, kBeforeNorm = false, kAfterNorm = false;
constexpr float kNormEps = params.norm_eps;
constexpr int kSlots = 0;
}  // namespace npusim

#include "kernels/cuda/matmul/linear_entry.h"
