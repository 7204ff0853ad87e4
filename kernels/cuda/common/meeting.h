// Where the threads of a block meet, for texts that all GPUs share: its number in the launch, a
// thread's in it, memory of its own (declared in an entry), and the point that all have to reach.
#pragma once
#include "kernels/cuda/common/entry.h"

#define NPUSIM_BLOCK_NUMBER (static_cast<int64_t>(blockIdx.x))
#define NPUSIM_MEMBER (static_cast<int>(threadIdx.x))
#define NPUSIM_BLOCK_MEMORY __shared__
#define NPUSIM_BLOCK_POINTER(type) type*
#define NPUSIM_MEET() __syncthreads()
