// Copies of whole boxes of a matrix to shared memory by Hopper's tensor memory engine, and the
// barriers that count their bytes. A box may go to several blocks of a cluster at once. Elsewhere
// than on sm_90a there is only the type of a kernel's parameters.
#pragma once
#include "kernels/cuda/common/cluster.h"
#include "kernels/cuda/common/wgmma.h"

namespace npusim {

// What the driver encodes of a matrix in memory: its extents, and a box of 64 elements by so many
// rows, whose chunks lie swizzled in shared memory as those of Tile.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline void make_barrier(unsigned at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
// Makes new barriers known to the cluster and to copies.
inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, and has the barrier's phase wait for so many bytes as well.
inline void expect_bytes(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
inline void arrive_in_block(unsigned barrier, unsigned rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in_block(barrier, rank))
               : "memory");
}
// Between what kernels before have written and copies that read it.
inline void publish_to_copies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Starts copying from this block's shared memory to that of a cluster's block, whose barrier counts
// the bytes.
inline void copy_to_block(unsigned to, unsigned from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// A barrier of the block's first kThreads threads.
template <int kThreads>
void wait_for_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}
// Waits until the phase of this parity has ended.
inline void wait_barrier(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
inline void fetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// What leaves the second cache before anything else, or behind everything else. To ask for the
// usual place is slower than not to ask.
template <bool kFirst>
unsigned long long leaving_policy() {
  unsigned long long policy;
  if constexpr (kFirst) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}
// Starts copying the box at (k, row), to the same place in every block of `blocks`, a bit each.
template <bool kShared, bool kHasPolicy>
void copy_box(unsigned to, const TensorMap* map, int k, int row, unsigned barrier, unsigned blocks,
              unsigned long long policy) {
  if constexpr (kShared && !kHasPolicy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(k), "r"(row), "h"(static_cast<unsigned short>(blocks))
        : "memory");
  } else if constexpr (!kHasPolicy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(k), "r"(row)
        : "memory");
  } else if constexpr (kShared) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(k), "r"(row), "h"(static_cast<unsigned short>(blocks)),
        "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(k), "r"(row), "l"(policy)
        : "memory");
  }
}
#endif

}  // namespace npusim
