// All kernels of this instruction set. A new kernel adds one line.
//
// A tier that only adds dot products (avx512bf16) compiles the kernels that multiply 16-bit or
// 8-bit rows as they lie, NPUSIM_DOT_KERNELS, and takes the others from the set below it,
// NPUSIM_BASE_ISA.
#include <span>

#include "kernels/cpu/kernel.h"

#ifndef NPUSIM_BASE_ISA
#define NPUSIM_BASE_ISA NPUSIM_ISA
#endif

namespace npusim::cpu {

#define NPUSIM_DOT_KERNELS(X) \
  X(attention)                \
  X(conv)                     \
  X(conv_int8)                \
  X(gemm)                     \
  X(linear)                   \
  X(matmul)                   \
  X(paged_attention)          \
  X(quantized_linear)         \
  X(widening_matmul)

#define NPUSIM_KERNELS(X) \
  X(conv_depthwise)       \
  X(conv_winograd)        \
  X(copy)                 \
  X(fill)                 \
  X(group_norm)           \
  X(grouped_matmul)       \
  X(index)                \
  X(norm)                 \
  X(pack_b)               \
  X(pack_int8)            \
  X(paged_append)         \
  X(pointwise)            \
  X(pool)                 \
  X(quantize)             \
  X(recurrence)           \
  X(reduce)               \
  X(resize)               \
  X(rope)                 \
  X(sample)               \
  X(scan)                 \
  X(scatter)              \
  X(softmax)              \
  X(sort)                 \
  X(winograd_weights)

#define NPUSIM_DECLARE(stem) extern const KernelEntry stem##_kernel;
#define NPUSIM_LIST(stem) &NPUSIM_ISA::stem##_kernel,
#define NPUSIM_LIST_BASE(stem) &NPUSIM_BASE_ISA::stem##_kernel,

namespace NPUSIM_BASE_ISA {
NPUSIM_KERNELS(NPUSIM_DECLARE)
}

namespace NPUSIM_ISA {

NPUSIM_DOT_KERNELS(NPUSIM_DECLARE)

std::span<const KernelEntry* const> kernel_table() {
  static constexpr const KernelEntry* table[] = {NPUSIM_DOT_KERNELS(NPUSIM_LIST)
                                                     NPUSIM_KERNELS(NPUSIM_LIST_BASE)};
  return table;
}

}  // namespace NPUSIM_ISA
}  // namespace npusim::cpu
