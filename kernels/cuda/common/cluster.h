// Blocks of a cluster, which run at the same time and use each other's shared memory. Older
// devices than sm_90 have none: kHasClusters says so, and nothing here may then be called.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kHasClusters = true;

// All threads of all blocks arrive, and wait where they need what the others wrote before.
inline void arrive_in_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The same where nothing but the time matters: nobody reads what was written before.
inline void arrive_in_cluster_bare() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Where an address of this block's shared memory lies in that of the cluster's block `rank`.
inline unsigned address_in_block(unsigned at, unsigned rank) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(at), "r"(rank));
  return mapped;
}
// What lies in the shared memory of the cluster's block `rank` where `shared` lies in this block's.
template <typename V>
V* in_block(V* shared, unsigned rank) {
  V* mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(shared), "r"(rank));
  return mapped;
}
inline void store_in_cluster(unsigned at, float first, float second) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(first), "f"(second)
               : "memory");
}
inline float load_in_cluster(unsigned at) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
  return value;
}
#else
constexpr bool kHasClusters = false;

inline void arrive_in_cluster() {}
inline void arrive_in_cluster_bare() {}
inline void wait_for_cluster() {}
inline unsigned address_in_block(unsigned at, unsigned) {
  return at;
}
template <typename V>
V* in_block(V* shared, unsigned) {
  return shared;
}
inline void store_in_cluster(unsigned, float, float) {}
inline float load_in_cluster(unsigned) {
  return 0.0f;
}
#endif

}  // namespace npusim
