// Where the threads of a threadgroup meet, for texts that all GPUs share: its number in the
// dispatch, a thread's in it, memory of its own (declared in an entry), and the point that all have
// to reach.
#pragma once
#include "kernels/metal/common/entry.h"

#define NPUSIM_BLOCK_NUMBER (static_cast<int64_t>(group))
#define NPUSIM_MEMBER (static_cast<int>(thread_of_group))
#define NPUSIM_BLOCK_MEMORY threadgroup
#define NPUSIM_BLOCK_POINTER(type) threadgroup type*
#define NPUSIM_MEET() metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup)
