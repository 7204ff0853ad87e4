// Counts of bytes by their upper three bits: in threadgroup memory, then added to the device's.
#include <metal_stdlib>
using namespace metal;

kernel void histogram(device const uchar* x [[buffer(0)]], device atomic_uint* counts [[buffer(1)]],
                      device atomic_int* extremes [[buffer(2)]], uint i [[thread_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup atomic_uint local[8];
  if (thread_index < 8) atomic_store_explicit(&local[thread_index], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&local[x[i] >> 5], 1u, memory_order_relaxed);
  atomic_fetch_min_explicit(&extremes[0], static_cast<int>(x[i]), memory_order_relaxed);
  atomic_fetch_max_explicit(&extremes[1], static_cast<int>(x[i]), memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < 8) {
    const uint count = atomic_load_explicit(&local[thread_index], memory_order_relaxed);
    atomic_fetch_add_explicit(&counts[thread_index], count, memory_order_relaxed);
  }
}
