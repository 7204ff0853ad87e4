// All kernels of this instruction set. A new kernel adds one line.
#include <span>

#include "kernels/cpu/kernel.h"

namespace npusim::cpu::NPUSIM_ISA {

#define NPUSIM_KERNELS(X) \
  X(attention)            \
  X(conv)                 \
  X(conv_depthwise)       \
  X(conv_winograd)        \
  X(copy)                 \
  X(fill)                 \
  X(gemm)                 \
  X(group_norm)           \
  X(index)                \
  X(matmul)               \
  X(norm)                 \
  X(pack_b)               \
  X(pointwise)            \
  X(pool)                 \
  X(reduce)               \
  X(resize)               \
  X(scan)                 \
  X(scatter)              \
  X(softmax)              \
  X(sort)                 \
  X(winograd_weights)

#define NPUSIM_DECLARE(stem) extern const KernelEntry stem##_kernel;
#define NPUSIM_LIST(stem) &stem##_kernel,

NPUSIM_KERNELS(NPUSIM_DECLARE)

std::span<const KernelEntry* const> kernel_table() {
  static constexpr const KernelEntry* table[] = {NPUSIM_KERNELS(NPUSIM_LIST)};
  return table;
}

}  // namespace npusim::cpu::NPUSIM_ISA
