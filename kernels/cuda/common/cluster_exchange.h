// Exchange of floats through distributed shared memory: blocks of a cluster store to each other's
// shared memory, and an mbarrier in the receiving block counts the bytes that have come. This is
// cheaper than the cluster's own barrier, at which every block waits for all its stores to global
// memory. Only where kHasClusters.
#pragma once
#include "kernels/cuda/common/cluster.h"

namespace npusim {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// One thread initialises the mbarrier; all threads then call exchange_arrive(), and cluster_wait()
// before the first of them sends.
inline void init_exchange(unsigned barrier) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.mbarrier_init.release.cluster;" ::"r"(barrier)
      : "memory");
}
inline void exchange_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// One thread of the receiving block says how many bytes will come in all.
inline void expect_exchange(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Stores 8 bytes in another block; both addresses are those of the receiving block, given by
// map_shared_rank().
inline void exchange_store(unsigned to, unsigned barrier, float first, float second) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "f"(first), "f"(second), "r"(barrier)
      : "memory");
}
// Waits until all bytes have come.
inline void wait_exchange(unsigned barrier) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier)
      : "memory");
}
#else
inline void init_exchange(unsigned) {}
inline void exchange_arrive() {}
inline void expect_exchange(unsigned, int) {}
inline void exchange_store(unsigned, unsigned, float, float) {}
inline void wait_exchange(unsigned) {}
#endif

}  // namespace npusim
