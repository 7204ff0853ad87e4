// TMA (tensor memory accelerator) loads of tiles of a matrix to shared memory, multicast to several
// blocks of a cluster where wanted, and the mbarriers that count their bytes. Other targets than
// sm_90a get only the type of a kernel's parameter.
#pragma once
#include "kernels/cuda/common/cluster.h"
#include "kernels/cuda/common/wgmma.h"

namespace npusim {

// A CUtensorMap, encoded by the driver: the extents of a matrix in global memory, and the tile (the
// "box") that one load copies, 64 elements by so many rows, with 128-byte swizzle (as in MmaTile).
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline void init_barrier(unsigned at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
// Makes new mbarriers visible to the cluster and to the async proxy.
inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, and has the mbarrier's phase wait for so many bytes as well.
inline void arrive_and_expect_bytes(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
inline void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
inline void arrive_remote(unsigned barrier, unsigned rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(map_shared_rank(barrier, rank))
               : "memory");
}
// Between what kernels before have written and TMA loads that read it.
inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Starts copying from this block's shared memory to that of another block of the cluster, whose
// mbarrier counts the bytes.
inline void copy_distributed_shared(unsigned to, unsigned from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// A barrier of the block's first kThreads threads, the consumers of a pipeline.
template <int kThreads>
void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}
// Waits until the phase of this parity has completed.
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
inline void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// L2 eviction priority: evict first, or evict last. (Asking for the normal priority is slower than
// not asking.)
template <bool kEvictFirst>
unsigned long long eviction_policy() {
  unsigned long long policy;
  if constexpr (kEvictFirst) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}
// Starts loading the tile at (k, row); kMulticast: to the same place in every block of the cluster
// whose bit is set in `blocks`.
template <bool kMulticast, bool kHasPolicy>
void tma_load(unsigned to, const TensorMap* map, int k, int row, unsigned barrier, unsigned blocks,
              unsigned long long policy) {
  if constexpr (kMulticast && !kHasPolicy) {
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
  } else if constexpr (kMulticast) {
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
