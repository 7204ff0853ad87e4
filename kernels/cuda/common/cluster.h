// Thread block clusters, and distributed shared memory: the blocks of a cluster run at the same
// time and can address each other's shared memory. Devices before sm_90 have no clusters:
// kHasClusters is false there, and the functions below, which then do nothing, may not be called.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kHasClusters = true;

// The cluster's barrier: all threads of all blocks arrive, and wait before they read what others
// wrote before they arrived.
inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Arrives without making anything visible: nobody reads what was written before.
inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Maps an address of this block's shared memory to the same place in the block `rank`'s.
inline unsigned map_shared_rank(unsigned at, unsigned rank) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(at), "r"(rank));
  return mapped;
}
// The same of a generic pointer.
template <typename V>
V* map_shared_rank(V* shared, unsigned rank) {
  V* mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(shared), "r"(rank));
  return mapped;
}
inline void store_distributed_shared(unsigned at, float first, float second) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(first), "f"(second)
               : "memory");
}
inline float load_distributed_shared(unsigned at) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
  return value;
}
#else
constexpr bool kHasClusters = false;

inline void cluster_arrive() {}
inline void cluster_arrive_relaxed() {}
inline void cluster_wait() {}
inline unsigned map_shared_rank(unsigned at, unsigned) {
  return at;
}
template <typename V>
V* map_shared_rank(V* shared, unsigned) {
  return shared;
}
inline void store_distributed_shared(unsigned, float, float) {}
inline float load_distributed_shared(unsigned) {
  return 0.0f;
}
#endif

}  // namespace npusim
