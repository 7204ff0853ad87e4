// The entry of a kernel whose text all GPUs share: its arguments, and which thread runs it.
#pragma once
#include "kernels/metal/common/scalar.h"
#include "kernels/shared/arguments.h"

#define NPUSIM_DECLARED(i) device void* argument##i [[buffer(i)]]
#define NPUSIM_ENTRY                                                                       \
  kernel void npusim_kernel(NPUSIM_SIGNATURE, uint group [[threadgroup_position_in_grid]], \
                            uint thread_of_group [[thread_position_in_threadgroup]])
// The number of a thread among all of its launch, inside of an entry.
#define NPUSIM_ITEM (static_cast<int64_t>(group) * NPUSIM_BLOCK + thread_of_group)

namespace npusim {

using Arguments = device void* const thread*;  // an entry's arguments, in an array

}  // namespace npusim
