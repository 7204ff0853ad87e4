// linear of rows that an RMS norm is to divide: unwritten_operands and paths as in linear.cu,
// NPUSIM_PATH 2 or 4.
namespace npusim {
constexpr bool kNormed = false, kBeforeNorm = false, kAfterNorm = true;
constexpr float kNormEps = params.norm_eps;
constexpr int kSlots = params.slots;
}  // namespace npusim

#include "kernels/cuda/matmul/linear_entry.h"
