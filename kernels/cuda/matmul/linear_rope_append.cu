// linear whose columns are queries, keys and values: turned, and appended to pages
// (rope_epilogue.h). NPUSIM_PATH as in linear.cu, TILE_MMA, TMA or SWAP_AB; all but the last leave
// the rest to a second launch.
#include "kernels/cuda/matmul/rope_epilogue.h"
#define NPUSIM_PRODUCT_OPERANDS ProductOperands
#include "kernels/cuda/matmul/linear_entry.h"

#if NPUSIM_PATH != NPUSIM_PATH_SWAP_AB
extern "C" __global__ void __launch_bounds__(NPUSIM_ROPE_BLOCK) npusim_rope(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::wait_on_dependencies();
  npusim::run_rope(operands);
}
#endif
