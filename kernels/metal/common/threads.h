// What threads do together: folds over neighbouring threads, in an order that is fixed here and not
// the device's. A SIMD group has 32 lanes; blocks have whole SIMD groups, and all of a group's
// threads take part. Lanes exchange 32 bits at a time: longer values go in parts.
#pragma once
#include "kernels/metal/common/wide.h"
#include "kernels/shared/folds.h"

namespace npusim {

constant constexpr int kSimdWidth = 32;

// x of the lane whose number differs in the bits of `step`.
template <typename T>
inline T across(T x, ushort step) {
  return metal::simd_shuffle_xor(x, step);
}
inline int64_t across(int64_t x, ushort step) {
  return as_type<int64_t>(metal::simd_shuffle_xor(as_type<uint2>(x), step));
}
inline uint64_t across(uint64_t x, ushort step) {
  return as_type<uint64_t>(metal::simd_shuffle_xor(as_type<uint2>(x), step));
}
inline Wide across(Wide x, ushort step) {
  return {metal::simd_shuffle_xor(x.high, step), metal::simd_shuffle_xor(x.low, step),
          metal::simd_shuffle_xor(x.scale, step)};
}

// x of the lane so many below; lanes that have none get any value.
template <typename T>
inline T lane_below(T x, ushort by) {
  return metal::simd_shuffle_up(x, by);
}
inline int64_t lane_below(int64_t x, ushort by) {
  return as_type<int64_t>(metal::simd_shuffle_up(as_type<uint2>(x), by));
}
inline uint64_t lane_below(uint64_t x, ushort by) {
  return as_type<uint64_t>(metal::simd_shuffle_up(as_type<uint2>(x), by));
}
inline Wide lane_below(Wide x, ushort by) {
  return {metal::simd_shuffle_up(x.high, by), metal::simd_shuffle_up(x.low, by),
          metal::simd_shuffle_up(x.scale, by)};
}

// Folds over kLanes neighbouring lanes, a power of two up to 32; all of them get the result.
template <int kLanes, typename T, typename F>
inline T fold_lanes(T x, F f) {
#pragma unroll
  for (ushort step = kLanes / 2; step > 0; step /= 2) x = f(x, across(x, step));
  return x;
}

// Values in threadgroup memory.
template <typename T>
inline void put(threadgroup T* at, T x) {
  *at = x;
}
inline void put(threadgroup Wide* at, Wide x) {
  at->high = x.high;
  at->low = x.low;
  at->scale = x.scale;
}
template <typename T>
inline T get(threadgroup const T* at) {
  return *at;
}
inline Wide get(threadgroup const Wide* at) {
  return {at->high, at->low, at->scale};
}

// Folds over kThreads neighbouring threads, a power of two; all of them get the result. More than
// 32 are all of a block's in so many teams, and `room` holds a value for each SIMD group.
template <int kThreads, typename T, typename F>
inline T fold_threads(T x, F f, threadgroup T* room, uint thread_of_group) {
  x = fold_lanes<(kThreads < kSimdWidth ? kThreads : kSimdWidth)>(x, f);
  if (kThreads <= kSimdWidth) return x;
  constexpr int kGroups = kThreads < kSimdWidth ? 1 : kThreads / kSimdWidth;
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);  // what an earlier fold left was read
  if (thread_of_group % kSimdWidth == 0) put(room + thread_of_group / kSimdWidth, x);
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  threadgroup const T* first = room + thread_of_group / kThreads * kGroups;
  x = get(first);
  for (int i = 1; i < kGroups; ++i) x = f(x, get(first + i));
  return x;
}

}  // namespace npusim
