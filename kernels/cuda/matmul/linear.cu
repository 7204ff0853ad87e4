// y = act(x · Wᵀ + bias + residual), or its gated form, over rows of W as a checkpoint stores them.
//
// NPUSIM_PATH says how, decided beside the launch geometry (codegen/cuda/launch_products.py):
//   0  one row of x: warps stream rows of W (gemv_stream.h), sums by multiply-adds
//   1  few rows of x, 16-bit: warps stream eight rows of W at a time through the tensor cores
//   2  many rows, 16-bit: tiles on the tensor cores
//   3  anything else: tiles by multiply-adds
//   4  many rows, 16-bit: tiles by TMA and wgmma (tma_matmul.h), and as path 2 elsewhere
//   5  one row of x, W through shared memory (gemv_multistage.h)
// Paths 2 and 3 may split K into NPUSIM_SPLIT slices, whose partial sums a second launch adds up in
// order.
namespace npusim {
constexpr bool kNormed = false, kBeforeNorm = false, kAfterNorm = false;
constexpr float kNormEps = 0.0f;
constexpr int kSlots = 0;
}  // namespace npusim

#include "kernels/cuda/matmul/linear_entry.h"
