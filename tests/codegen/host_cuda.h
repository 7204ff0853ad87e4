// Enough of CUDA for a host compiler to run a kernel's source: the threads of a block are fibers
// that take turns, and a barrier waits until all have arrived. Blocks run one after another, so
// shared memory is static memory. Semantics, not speed; warp-synchronous code without shuffles or
// barriers is not what kernels/cuda holds.
#pragma once
#include <sched.h>
#include <setjmp.h>
#include <time.h>
#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#ifndef __clang__
#define __builtin_assume(condition)
#endif

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct Dim3 {
  unsigned x, y, z;
};
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

// What others wrote before a flag that has been seen.
template <typename T>
T __ldcg(const T* at) {
  return *at;
}

namespace host {

enum Wait { kNothing, kWarp, kBlock, kEnd };

struct Fiber {
  jmp_buf place;  // where it waits; a ucontext_t would ask the system to mask signals at each turn
  std::unique_ptr<char[]> stack;
  Wait wait;
  alignas(16) unsigned char slot[48];  // what it shows to the other lanes
};
inline std::vector<Fiber> fibers;
inline jmp_buf scheduler;
inline void (*entry)(void**);
inline void** entry_arguments;

inline constexpr size_t kStack = 1 << 16;

inline void wait_for(Wait what) {
  Fiber& self = fibers[threadIdx.x];
  self.wait = what;
  if (_setjmp(self.place) == 0) _longjmp(scheduler, 1);
}
inline void start() {
  for (;;) {
    entry(entry_arguments);
    wait_for(kEnd);
  }
}

// Lets a fiber run until it waits. One that has ended begins anew, on the stack it has.
inline void resume(Fiber& fiber) {
  if (_setjmp(scheduler) != 0) return;
  if (fiber.stack) _longjmp(fiber.place, 1);
  fiber.stack = std::make_unique<char[]>(kStack);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStack;
  makecontext(&context, start, 0);
  setcontext(&context);
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
  for (size_t i = 0; i < threads; ++i) fibers[i].wait = kNothing;
  for (bool running = true; running;) {
    running = false;
    for (size_t i = 0; i < threads; ++i) {
      if (fibers[i].wait != kNothing) continue;
      running = true;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      resume(fibers[i]);
    }
    for (size_t i = 0; i < threads; i += 32) release(i, i + 32 < threads ? i + 32 : threads, kWarp);
    release(0, threads, kBlock);
  }
}

// A launch of blocks in one dimension. Without barriers no fibers are needed.
inline void launch(void (*kernel)(void**), void** arguments, Dim3 grid, unsigned block,
                   bool barriers) {
  entry = kernel;
  entry_arguments = arguments;
  gridDim = grid;
  blockDim = {block, 1, 1};
  for (unsigned b = 0; b < grid.x * grid.y * grid.z; ++b) {
    blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
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

// What a block's launch gives it, at addresses from 0 on.
alignas(1024) inline unsigned char dynamic_memory[227 << 10];

// Shows every lane of the warp what each of them gives.
template <typename T>
std::array<T, 32> gather(const T& value) {
  static_assert(sizeof(T) <= sizeof(Fiber::slot));
  std::array<T, 32> all{};
  const unsigned self = threadIdx.x;
  std::memcpy(fibers[self].slot, &value, sizeof value);
  wait_for(kWarp);
  for (unsigned i = 0; i < 32; ++i) {
    std::memcpy(&all[i], fibers[self / 32 * 32 + i].slot, sizeof value);
  }
  wait_for(kWarp);
  return all;
}

// As kernels/cuda/common/mma.h has them in PTX: matrices of eight rows of eight 16-bit elements,
// and the product of 16 by 16 and 16 by 8 whose elements lie over the lanes.
inline void ldmatrix(unsigned (&r)[4], unsigned at, bool transposed) {
  const std::array<unsigned, 32> rows = gather(at);
  const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned row = transposed ? 2 * t + e : g, column = transposed ? g : 2 * t + e;
      std::memcpy(&pair[e], dynamic_memory + rows[i * 8 + row] + column * 2, 2);
    }
    r[i] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
  }
}
template <typename F>
void mma_16x8x16(float (&c)[4], const uint4& a, const uint2& b, F to_float) {
  const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const Fiber* const lanes = &fibers[threadIdx.x / 32 * 32];
  // Elements of a, then of b: converted once, by the lane that has them.
  const unsigned words[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
  float elements[12];
  for (unsigned i = 0; i < 12; ++i) elements[i] = to_float(words[i / 2] >> (i % 2 * 16));
  static_assert(sizeof elements <= sizeof(Fiber::slot));
  std::memcpy(fibers[threadIdx.x].slot, elements, sizeof elements);
  wait_for(kWarp);
  const auto shown = [&](unsigned by, unsigned word, unsigned k) {
    float x;
    std::memcpy(&x, lanes[by].slot + (word * 2 + k % 2) * sizeof x, sizeof x);
    return x;
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = g + i / 2 * 8, column = 2 * t + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned half = k / 8, pair = k % 8 / 2;
      c[i] +=
          shown(row % 8 * 4 + pair, row / 8 + 2 * half, k) * shown(column * 4 + pair, 4 + half, k);
    }
  }
  wait_for(kWarp);
}

}  // namespace host

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}
inline void __syncthreads() {
  host::wait_for(host::kBlock);
}
inline void __syncwarp() {
  host::wait_for(host::kWarp);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return host::exchange(value, threadIdx.x % 32 ^ mask);
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return host::exchange(value, lane);
}
inline bool __any_sync(unsigned mask, int predicate) {
  for (int lanes = 1; lanes < 32; lanes *= 2) predicate |= __shfl_xor_sync(mask, predicate, lanes);
  return predicate != 0;
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
  const unsigned lane = threadIdx.x % 32;
  return host::exchange(value, lane >= delta ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const std::array<int, 32> all = host::gather(predicate);
  unsigned lanes = 0;
  for (unsigned i = 0; i < 32; ++i) lanes |= static_cast<unsigned>(all[i] != 0) << i;
  return lanes;
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline int atomicCAS(int* at, int expected, int value) {
  const int old = *at;
  if (old == expected) *at = value;
  return old;
}

template <typename T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at = old + value;
  return old;
}
template <typename T>
T atomicMax(T* at, T value) {
  const T old = *at;
  *at = old < value ? value : old;
  return old;
}
template <typename T>
T atomicMin(T* at, T value) {
  const T old = *at;
  *at = value < old ? value : old;
  return old;
}

// Between float and 16 bits, to nearest even; kernels/cuda/common/scalar.h has them in PTX.
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
