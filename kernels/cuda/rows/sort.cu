// The k first of a stable sort along the middle of a dense [outer, size, inner]. Elements become
// unsigned keys whose order is the one asked for (NaN largest, -0 equal to 0, inverted when
// descending); a key with its position is unique, so the bitonic network below is stable
// (Batcher, "Sorting networks and their applications", 1968). A block sorts one lane, padded to
// NPUSIM_WIDTH, in shared memory, or in scratch memory where NPUSIM_SCRATCH says so.
#include "kernels/cuda/common/scalar_ops.h"

namespace npusim {

using X = Storage<params.dtype>;
using C = Compute<params.dtype>;

inline uint64_t key_of(int64_t x) {
  return static_cast<uint64_t>(x) ^ (uint64_t{1} << 63);
}
// Positive numbers order as their bits do, negative ones backwards.
inline uint64_t key_of(double x) {
  if (x != x) return ~uint64_t{0};
  const auto bits = __builtin_bit_cast(int64_t, x == 0 ? 0.0 : x);
  return key_of(bits < 0 ? bits ^ kLargest : bits);
}
inline uint64_t key_of(float x) {
  return key_of(static_cast<double>(x));
}

// Keys and positions of a lane.
struct Items {
  uint64_t* keys;
  int32_t* positions;

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

inline void bitonic_sort(const Items& items) {
  constexpr int kWidth = NPUSIM_WIDTH;
  for (int run = 2; run <= kWidth; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < kWidth / 2; pair += NPUSIM_BLOCK) {
        const int a = pair / step * 2 * step + pair % step, b = a + step;
        const bool up = (a & run) == 0;
        if (items.is_after(a, b) == up) items.swap(a, b);
      }
    }
  }
  __syncthreads();
}

inline void sort_lane(const X* x, X* values, int64_t* indices, const Items& items) {
  constexpr uint64_t flip = params.descending ? ~uint64_t{0} : 0;
  for (int i = threadIdx.x; i < NPUSIM_WIDTH; i += NPUSIM_BLOCK) {
    items.keys[i] = i < params.size ? key_of(decode<C>(x[i * params.inner])) ^ flip : ~uint64_t{0};
    items.positions[i] = i;
  }
  bitonic_sort(items);
  for (int i = threadIdx.x; i < params.k; i += NPUSIM_BLOCK) {
    values[i * params.inner] = x[items.positions[i] * params.inner];
    indices[i * params.inner] = items.positions[i];
  }
}

inline void sort(const void* x, void* values, void* indices, void* room) {
  const int64_t outer = blockIdx.x / params.inner, column = blockIdx.x % params.inner;
  const int64_t in = outer * params.size * params.inner + column;
  const int64_t out = outer * params.k * params.inner + column;
  auto* keys = static_cast<uint64_t*>(room);
  const Items items{keys, reinterpret_cast<int32_t*>(keys + NPUSIM_WIDTH)};
  sort_lane(static_cast<const X*>(x) + in, static_cast<X*>(values) + out,
            static_cast<int64_t*>(indices) + out, items);
}

}  // namespace npusim

#if NPUSIM_SCRATCH
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void* values, void* indices, void* scratch) {
  constexpr int64_t each = int64_t{NPUSIM_WIDTH} * 12;
  npusim::sort(x, values, indices, static_cast<char*>(scratch) + blockIdx.x * each);
}
#else
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void* values, void* indices) {
  __shared__ uint64_t room[NPUSIM_WIDTH + NPUSIM_WIDTH / 2];
  npusim::sort(x, values, indices, room);
}
#endif
