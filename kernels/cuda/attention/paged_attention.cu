// y = softmax(cap(scale * q·kᵀ), causal)·v for rows of many requests, whose keys and values lie in
// pages.
//
// What a row gets is a function of its keys, its values and its position, to the bit. Keys come in
// units at fixed positions; each has weights relative to its own greatest score. The units of a
// chunk are folded in order, and then chunks are (paged_sums.h), whoever computes them: neither
// other rows count, nor how many blocks share the keys, nor where pages lie.
//
// NPUSIM_PATH (common/paths.h) is TILE_MMA, or TILE_SIMT for what the tensor cores do not take.
#include "kernels/cuda/attention/paged_sums.h"
#include "kernels/cuda/attention/pages.h"
#include "kernels/cuda/common/paths.h"

#if NPUSIM_PATH == NPUSIM_PATH_TILE_MMA
#include "kernels/cuda/attention/paged_mma.h"
#else
#include "kernels/cuda/attention/paged_simt.h"
#endif

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}
