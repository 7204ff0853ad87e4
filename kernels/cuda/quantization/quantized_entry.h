// The entries of quantized_linear, and of it behind an RMS norm.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/matmul/gemv_epilogue.h"
#include "kernels/cuda/quantization/code_pairs.h"
#include "kernels/cuda/quantization/quantized_operands.h"
#if NPUSIM_PATH == NPUSIM_PATH_GEMV_MULTISTAGE
#include "kernels/cuda/matmul/gemv_multistage.h"
#elif NPUSIM_PATH == NPUSIM_PATH_CODES_ROWS
#include "kernels/cuda/quantization/codes_rows.h"
#elif NPUSIM_IS_GEMV
#include "kernels/cuda/quantization/codes_stream.h"
#else
#include "kernels/cuda/quantization/codes_source.h"
#endif

#if NPUSIM_PATH == NPUSIM_PATH_CODES_TMA
#include "kernels/cuda/quantization/tma_codes_entry.h"
#else

namespace npusim {

#if NPUSIM_PATH == NPUSIM_PATH_GEMV_MULTISTAGE || NPUSIM_PATH == NPUSIM_PATH_CODES_ROWS
// Whether rows of W that follow one another in a part do so in memory.
constexpr bool rows_are_even() {
  bool all = params.segments == 1 || params.segments == kParts;
  for (int i = 0; params.segments > 1 && i < params.segments; ++i) {
    all = all && params.rows[i] == params.n;
  }
  return all;
}

struct Weights {
  static constexpr bool kEven = rows_are_even();
  static constexpr int kStride = static_cast<int>(kCodes);
  void* const* operands;
  QuantizedRow whole_row(int64_t row) const { return weight_row(operands, row); }
  const uint8_t* row(int64_t row) const { return whole_row(row).codes; }
  float scale(int64_t row) const { return *whole_row(row).scale; }
  const X* norm() const { return static_cast<const X*>(operands[1 + params.segments]); }
};

inline void run(void* const* operands) {
  const Weights weights{operands};
  const Epilogue epilogue(operands, kWeights);
  const X* x = static_cast<const X*>(operands[0]);
  const bool wide = is_aligned(x, 16) && (params.m == 1 || params.ldx % 8 == 0) &&
                    (!kNormed || is_aligned(weights.norm(), 16));
#if NPUSIM_PATH == NPUSIM_PATH_CODES_ROWS
  if (wide) {
    run_rows<true>(weights, x, epilogue);
  } else {
    run_rows<false>(weights, x, epilogue);
  }
#else
  if (wide) {
    run_multistage<true, X, X>(weights, x, epilogue);
  } else {
    run_multistage<false, X, X>(weights, x, epilogue);
  }
#endif
}
#elif NPUSIM_IS_GEMV
inline void run(void* const* operands) {
  wait_on_dependencies();
  stream_codes(operands);
}
#else
inline void run(void* const* operands) {
  wait_on_dependencies();
  run_tile(source_of(operands), operands);
}
#endif

}  // namespace npusim

#if NPUSIM_PATH == NPUSIM_PATH_GEMV_MULTISTAGE || \
    NPUSIM_PATH == NPUSIM_PATH_CODES_ROWS  // registers for blocks of the next launches
#define NPUSIM_BOUNDS NPUSIM_BLOCK, NPUSIM_BLOCKS_PER_SM
#else
#define NPUSIM_BOUNDS NPUSIM_BLOCK
#endif
extern "C" __global__ void __launch_bounds__(NPUSIM_BOUNDS) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
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
