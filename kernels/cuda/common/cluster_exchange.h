// Floats that the blocks of a cluster send to each other's shared memory. A barrier in the
// receiving block counts their bytes, so that neither side needs a fence: barriers of the cluster
// have every block wait for all that it has stored to global memory. Only where kHasClusters.
#pragma once
#include "kernels/cuda/common/cluster.h"

namespace npusim {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// One thread makes the barrier; then all blocks meet once before the first of them sends.
inline void make_mailbox(unsigned barrier) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.mbarrier_init.release.cluster;" ::"r"(barrier)
      : "memory");
}
inline void arrive_with_mailbox() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// One thread says how many bytes will come in all.
inline void expect_mail(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Sends 8 bytes; both addresses lie in the receiving block, as address_in_block() gives them.
inline void send(unsigned to, unsigned barrier, float first, float second) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "f"(first), "f"(second), "r"(barrier)
      : "memory");
}
// Waits until all bytes have come.
inline void await_mail(unsigned barrier) {
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
inline void make_mailbox(unsigned) {}
inline void arrive_with_mailbox() {}
inline void expect_mail(unsigned, int) {}
inline void send(unsigned, unsigned, float, float) {}
inline void await_mail(unsigned) {}
#endif

}  // namespace npusim
