// The k first of a stable sort along the middle of a dense [outer, size, inner]. Elements become
// unsigned keys whose order is the one asked for (NaN largest, -0 equal to 0, inverted when
// descending); a key with its position is unique, so the bitonic network below is stable (Batcher,
// "Sorting networks and their applications", 1968). A threadgroup sorts one lane, padded to
// NPUSIM_WIDTH, in threadgroup memory, or in scratch memory where NPUSIM_SCRATCH says so.
#include "kernels/metal/common/scalar_ops.h"

namespace npusim {

typedef Storage<params.dtype> X;

#if NPUSIM_SCRATCH
#define NPUSIM_ROOM device
#define NPUSIM_FLAGS metal::mem_flags::mem_device
#else
#define NPUSIM_ROOM threadgroup
#define NPUSIM_FLAGS metal::mem_flags::mem_threadgroup
#endif

inline uint64_t key_of(int64_t x) {
  return static_cast<uint64_t>(x) ^ (1UL << 63);
}
// Positive numbers order as their bits do, negative ones backwards. From the bits alone: a device
// may take the smallest numbers for zeros.
inline uint64_t key_of(float x) {
  const uint bits = as_type<uint>(x), size = bits & 0x7fffffffU;
  if (size > 0x7f800000U) return 0xffffffffffffffffUL;
  if (size == 0) return 0x80000000UL;
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}

// Keys and positions of a lane.
struct Items {
  NPUSIM_ROOM uint64_t* keys;
  NPUSIM_ROOM int32_t* positions;

  bool is_after(int a, int b) const {
    return keys[a] > keys[b] || (keys[a] == keys[b] && positions[a] > positions[b]);
  }
  void swap(int a, int b) const {
    const uint64_t key = keys[a];
    const int32_t position = positions[a];
    keys[a] = keys[b];
    positions[a] = positions[b];
    keys[b] = key;
    positions[b] = position;
  }
};

inline void bitonic_sort(Items items, int thread_index) {
  for (int run = 2; run <= NPUSIM_WIDTH; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      threadgroup_barrier(NPUSIM_FLAGS);
      for (int pair = thread_index; pair < NPUSIM_WIDTH / 2; pair += NPUSIM_BLOCK) {
        const int a = pair / step * 2 * step + pair % step, b = a + step;
        const bool up = (a & run) == 0;
        if (items.is_after(a, b) == up) items.swap(a, b);
      }
    }
  }
  threadgroup_barrier(NPUSIM_FLAGS);
}

inline void sort_lane(device const X* x, device X* values, device int64_t* indices, Items items,
                      int thread_index) {
  const uint64_t flip = params.descending ? 0xffffffffffffffffUL : 0UL;
  for (int i = thread_index; i < NPUSIM_WIDTH; i += NPUSIM_BLOCK) {
    items.keys[i] = 0xffffffffffffffffUL;
    if (i < params.size) {
      items.keys[i] = key_of(decode<Compute<params.dtype>>(x[i * params.inner])) ^ flip;
    }
    items.positions[i] = i;
  }
  bitonic_sort(items, thread_index);
  for (int i = thread_index; i < params.k; i += NPUSIM_BLOCK) {
    values[i * params.inner] = x[items.positions[i] * params.inner];
    indices[i * params.inner] = items.positions[i];
  }
}

}  // namespace npusim

using namespace npusim;
[[max_total_threads_per_threadgroup(NPUSIM_BLOCK)]] kernel void npusim_kernel(
    device const X* x [[buffer(0)]], device X* values [[buffer(1)]],
    device int64_t* indices [[buffer(2)]],
#if NPUSIM_SCRATCH
    device uint64_t* scratch [[buffer(3)]],
#endif
    uint group [[threadgroup_position_in_grid]],
    uint thread_of_group [[thread_position_in_threadgroup]]) {
#if NPUSIM_SCRATCH
  device uint64_t* keys = scratch + static_cast<int64_t>(group) * (NPUSIM_WIDTH / 2 * 3);
  const Items items = {keys, reinterpret_cast<device int32_t*>(keys + NPUSIM_WIDTH)};
#else
  threadgroup uint64_t keys[NPUSIM_WIDTH];
  threadgroup int32_t positions[NPUSIM_WIDTH];
  const Items items = {keys, positions};
#endif
  const int64_t outer = group / params.inner, column = group % params.inner;
  const int64_t in = outer * params.size * params.inner + column;
  const int64_t out = outer * params.k * params.inner + column;
  sort_lane(x + in, values + out, indices + out, items, static_cast<int>(thread_of_group));
}
