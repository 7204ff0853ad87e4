// Convolution of one to three dimensions, grouped, dilated or transposed, as a product: rows are
// output positions, K runs over taps and channels, B is what pack_b wrote.
//
// NPUSIM_PATH says how, decided beside the launch geometry (codegen/cuda/convolutions.py):
//   0  16-bit operands whose channels are contiguous and come in eights: tiles on the tensor cores
//   1  16-bit operands of few channels: patches of the input in shared memory, on the tensor cores
//   2  anything else: tiles by multiply-adds
#include "kernels/cuda/conv/conv_window.h"
#include "kernels/cuda/conv/packed_weights.h"
#include "kernels/cuda/matmul/epilogue.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;
constexpr bool kTransposed = params.transposed != 0;
constexpr int64_t kChannels = params.in_channels / params.groups;
constexpr int64_t kColumns = params.out_channels / params.groups;
constexpr int64_t kK = kTaps * kChannels;
using Weights = PackedWeights<W, kColumns, kK, is_packed_by_rows(kChannels)>;

// Whether weights and biases may be read before the wait; the launch before never writes them.
constexpr bool kWeightsUnwritten = (unwritten_operands >> 1 & 1) != 0;
constexpr bool kBiasUnwritten = (unwritten_operands >> 2 & 1) != 0;

extern __shared__ __align__(1024) unsigned char shared_memory[];

}  // namespace npusim

#if NPUSIM_PATH < 2
#include "kernels/cuda/conv/conv_vectors.h"
#endif
#if NPUSIM_PATH == 0
#include "kernels/cuda/conv/mma_conv.h"
#elif NPUSIM_PATH == 1
#include "kernels/cuda/conv/patch_conv.h"
#else
#include "kernels/cuda/conv/simt_conv.h"
#endif

#ifndef NPUSIM_CLUSTER_DIMS
#define NPUSIM_CLUSTER_DIMS
#endif
#ifdef NPUSIM_BLOCKS_PER_SM
#define NPUSIM_BOUNDS __launch_bounds__(NPUSIM_BLOCK, NPUSIM_BLOCKS_PER_SM)
#else
#define NPUSIM_BOUNDS __launch_bounds__(NPUSIM_BLOCK)
#endif
extern "C" __global__ void NPUSIM_CLUSTER_DIMS NPUSIM_BOUNDS npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}

#if NPUSIM_PATH == 2 && NPUSIM_SPLIT > 1
extern "C" __global__ void __launch_bounds__(256) npusim_combine(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::wait_on_dependencies();
  npusim::combine(operands);
}
#endif
