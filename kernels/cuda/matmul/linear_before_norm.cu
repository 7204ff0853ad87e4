// linear whose y an RMS norm begins with: unwritten_operands and paths as in linear.cu, NPUSIM_PATH
// 2 or 4, K in one span.
namespace npusim {
constexpr bool kNormed = false, kBeforeNorm = true, kAfterNorm = false;
constexpr float kNormEps = 0.0f;
constexpr int kSlots = params.slots;
}  // namespace npusim

#include "kernels/cuda/matmul/linear_entry.h"
