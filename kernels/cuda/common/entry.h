// The entry of a kernel whose text all GPUs share: its arguments, and which thread runs it.
#pragma once
#include "kernels/cuda/common/scalar.h"
#include "kernels/shared/arguments.h"

#define NPUSIM_DECLARED(i) void* argument##i
#define NPUSIM_ENTRY \
  extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE)
// The number of a thread among all of its launch, inside of an entry.
#define NPUSIM_ITEM npusim::thread_index()

namespace npusim {

using Arguments = void* const*;  // an entry's arguments, in an array

// A function, as NVRTC makes shorter code of it than of the same expression in an entry.
inline int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
}

}  // namespace npusim
