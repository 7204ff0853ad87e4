// y = act(x · Wᵀ + bias + residual), or its gated form, over rows of W as a checkpoint stores them.
//
// NPUSIM_PATH (common/paths.h) says how:
//   GEMV_SIMT        one row of x: warps stream rows of W, multiply-adds (gemv_stream.h)
//   GEMV_MMA         few rows of x, 16-bit: warps stream eight rows of W at a time, tensor cores
//   GEMV_MULTISTAGE  one row of x, W through a pipeline in shared memory (gemv_multistage.h)
//   TILE_MMA         many rows, 16-bit: tiles on the tensor cores (mma_tile.h)
//   TMA              many rows, 16-bit: tiles by TMA and wgmma (tma_matmul.h); elsewhere TILE_MMA
//   SWAP_AB          few rows in the order of any number of them (swap_ab.h); elsewhere TILE_MMA
//   TILE_FLOAT       anything else: tiles of float32 on the tensor cores (float_tile.h)
// TILE_MMA and TILE_FLOAT may split K into NPUSIM_SPLIT slices, whose partial sums a second launch
// adds up in order.
#include "kernels/cuda/matmul/linear_entry.h"
