// linear whose columns are queries, keys and values: turned, and appended to pages
// (rope_epilogue.h). NPUSIM_PATH as in linear.cu, TILE_MMA, TMA or SWAP_AB; NPUSIM_ROPE_BLOCK:
// threads of the second launch, which there is without NPUSIM_ROPE_JOINED.
#include "kernels/cuda/matmul/rope_epilogue.h"
#ifndef NPUSIM_ROPE_JOINED
#define NPUSIM_PRODUCT_OPERANDS ProductOperands
#endif
#include "kernels/cuda/matmul/linear_entry.h"

#ifndef NPUSIM_ROPE_JOINED
// All launches of a command take the same arguments.
#ifdef NPUSIM_MAPS
#define NPUSIM_ROPE_SIGNATURE NPUSIM_TMA_SIGNATURE
#else
#define NPUSIM_ROPE_SIGNATURE NPUSIM_SIGNATURE
#endif

extern "C" __global__ void __launch_bounds__(NPUSIM_ROPE_BLOCK) npusim_rope(NPUSIM_ROPE_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::wait_on_dependencies();
  npusim::run_rope(operands);
}
#endif
