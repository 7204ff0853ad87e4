// The entries of linear, and of linear beside an RMS norm.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/matmul/entry_operands.h"
#include "kernels/cuda/matmul/gemv_epilogue.h"
#include "kernels/cuda/matmul/linear_operands.h"
#include "kernels/cuda/matmul/norm_between.h"
#if NPUSIM_PATH == NPUSIM_PATH_GEMV_MULTISTAGE
#include "kernels/cuda/matmul/gemv_multistage.h"
#elif NPUSIM_IS_GEMV
#include "kernels/cuda/matmul/gemv_stream.h"
#else
#include "kernels/cuda/matmul/linear_source.h"
#endif

#if NPUSIM_PATH == NPUSIM_PATH_TMA || NPUSIM_PATH == NPUSIM_PATH_SWAP_AB  // what both include
#include "kernels/cuda/common/tma.h"
#include "kernels/cuda/common/tma_signature.h"
#include "kernels/cuda/matmul/row_epilogue.h"
#include "kernels/cuda/matmul/tma_maps.h"
#endif
#if NPUSIM_PATH == NPUSIM_PATH_TMA
#include "kernels/cuda/matmul/tma_entry.h"
#elif NPUSIM_PATH == NPUSIM_PATH_SWAP_AB
#include "kernels/cuda/matmul/swap_ab_entry.h"
#else
namespace npusim {

#if NPUSIM_IS_GEMV
struct Weights {
  static constexpr bool kEven = false;  // rows are found one by one
  void* const* operands;
  const W* row(int64_t row) const { return weight_row(operands, row); }
  const W* norm() const { return static_cast<const W*>(operands[1 + params.segments]); }
  bool wide() const { return operands_are_chunk_aligned(operands); }
};

inline void run(void* const* operands) {
  const Epilogue epilogue(operands, kWeights);
  const X* x = static_cast<const X*>(operands[0]);
#if NPUSIM_PATH == NPUSIM_PATH_GEMV_MULTISTAGE
  const Weights weights{operands};
  if (weights.wide()) {
    run_multistage<true, X, W>(weights, x, epilogue);
  } else {
    run_multistage<false, X, W>(weights, x, epilogue);
  }
#elif NPUSIM_PATH == NPUSIM_PATH_GEMV_SIMT
  stream_rows<X, W>(Weights{operands}, x, epilogue);
#else
  stream_columns<W>(Weights{operands}, x, epilogue);
#endif
}

#else
inline void run(void* const* operands) {
  wait_on_dependencies();
  const Source source = source_of(operands);
  run_tile(source, operands);
  if constexpr (kBeforeNorm) {
    static_assert(!kBeforeNorm || NPUSIM_SPLIT == 1);
    __syncthreads();  // y has been stored
    store_norm_outputs<kTileRows, kOutputs>(operands, source.first_row, source.first_column,
                                            NPUSIM_BLOCK);
  }
}

#endif

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  NPUSIM_DECLARE_OPERANDS;
#if NPUSIM_IS_GEMV
  npusim::launch_dependents();
#endif
  npusim::run(operands);
}
#endif

#if !NPUSIM_IS_GEMV && NPUSIM_SPLIT > 1
extern "C" __global__ void __launch_bounds__(256) npusim_combine(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::wait_on_dependencies();
  npusim::combine(npusim::source_of(operands), operands);
}
#endif
