// Who of several blocks of a launch comes last, and sees what the others have stored. Blocks need
// not run at the same time.
#pragma once

namespace npusim {

// Counts from 0 to `count` - 1 and begins anew, so that the next launch finds 0; returns what it
// was. All that the block has stored before is seen by who counts later.
#ifdef __CUDA_ARCH__
inline unsigned count_round(unsigned* counter, unsigned count) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(count - 1)
               : "memory");
  return before;
}
#else
inline unsigned count_round(unsigned* counter, unsigned count) {
  const unsigned before = *counter;
  *counter = before + 1 < count ? before + 1 : 0;
  return before;
}
#endif

// Called by all threads of `count` blocks; true in the last of them. `counter` is 0 before.
inline bool arrives_last(unsigned& counter, int count) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = count_round(&counter, count) + 1 == static_cast<unsigned>(count);
  __syncthreads();
  return last;
}

}  // namespace npusim
