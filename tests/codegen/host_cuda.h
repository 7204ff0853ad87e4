// Enough of CUDA for a host compiler to run a kernel's source: the threads of a block are fibers
// that take turns, and a barrier waits until all have arrived. Blocks run one after another, so
// shared memory is static memory. Semantics, not speed; warp-synchronous code without shuffles or
// barriers is not what kernels/cuda holds.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#define __global__
#define __launch_bounds__(threads)
#define __shared__ static

struct uint4 {
  unsigned x, y, z, w;
};
struct Dim3 {
  unsigned x, y, z;
};
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

enum Wait { kNothing, kWarp, kBlock, kEnd };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Wait wait;
  unsigned char slot[16];  // what a shuffle shows to the other lanes
};
inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline void (*entry)(void**);
inline void** entry_arguments;

inline constexpr size_t kStack = 1 << 16;

inline void wait_for(Wait what) {
  Fiber& self = fibers[threadIdx.x];
  self.wait = what;
  swapcontext(&self.context, &scheduler);
}
inline void start() {
  entry(entry_arguments);
  wait_for(kEnd);
}

// Whether all that still run among [first, last) wait for `what`.
inline bool all_wait(size_t first, size_t last, Wait what) {
  bool any = false;
  for (size_t i = first; i < last; ++i) {
    if (fibers[i].wait != what && fibers[i].wait != kEnd) return false;
    any |= fibers[i].wait == what;
  }
  return any;
}
inline void release(size_t first, size_t last, Wait what) {
  if (!all_wait(first, last, what)) return;
  for (size_t i = first; i < last; ++i) {
    if (fibers[i].wait == what) fibers[i].wait = kNothing;
  }
}

inline void run_block(size_t threads) {
  if (fibers.size() < threads) fibers.resize(threads);
  for (size_t i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStack);
    fiber.wait = kNothing;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    makecontext(&fiber.context, start, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (size_t i = 0; i < threads; ++i) {
      if (fibers[i].wait != kNothing) continue;
      running = true;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      swapcontext(&scheduler, &fibers[i].context);
    }
    for (size_t i = 0; i < threads; i += 32) release(i, i + 32 < threads ? i + 32 : threads, kWarp);
    release(0, threads, kBlock);
  }
}

// A launch in one dimension. Without barriers no fibers are needed.
inline void launch(void (*kernel)(void**), void** arguments, unsigned grid, unsigned block,
                   bool barriers) {
  entry = kernel;
  entry_arguments = arguments;
  gridDim = {grid, 1, 1};
  blockDim = {block, 1, 1};
  for (unsigned b = 0; b < grid; ++b) {
    blockIdx = {b, 0, 0};
    if (barriers) {
      run_block(block);
      continue;
    }
    for (unsigned t = 0; t < block; ++t) {
      threadIdx = {t, 0, 0};
      kernel(arguments);
    }
  }
}

// Calls a kernel, whose parameters are pointers, with what `arguments` holds.
template <typename... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(static_cast<A>(arguments[I])...);
}
template <typename... A>
void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>());
}

template <typename T>
T exchange(T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(Fiber::slot));
  const unsigned self = threadIdx.x;
  std::memcpy(fibers[self].slot, &value, sizeof value);
  wait_for(kWarp);
  std::memcpy(&value, fibers[self / 32 * 32 + lane].slot, sizeof value);
  wait_for(kWarp);
  return value;
}

}  // namespace host

inline void __syncthreads() {
  host::wait_for(host::kBlock);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return host::exchange(value, threadIdx.x % 32 ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
  const unsigned lane = threadIdx.x % 32;
  return host::exchange(value, lane >= delta ? lane - delta : lane);
}
inline int atomicCAS(int* at, int expected, int value) {
  const int old = *at;
  if (old == expected) *at = value;
  return old;
}

// Between float and 16 bits, to nearest even; kernels/cuda/scalar.h has them in PTX.
inline float float_of_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = bits >> 10 & 31U, fraction = bits & 1023U;
  if (exponent == 0) {
    const float small = std::ldexp(static_cast<float>(fraction), -24);
    return sign ? -small : small;
  }
  const uint32_t raised = exponent == 31 ? 255U : exponent + 112;
  return __builtin_bit_cast(float, sign | raised << 23 | fraction << 13);
}
inline uint16_t half_of_float(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000U);
  const float magnitude = std::fabs(x);
  if (x != x) return 0x7fff;
  if (magnitude >= 65520.0F) return sign | 0x7c00;
  if (magnitude < 0x1p-14F) {
    return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 24)));
  }
  const uint32_t rounded = (bits & 0x7fffffffU) + 0xfffU + (bits >> 13 & 1U);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112U << 10));
}
inline uint16_t bfloat16_of_float(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if (x != x) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}
