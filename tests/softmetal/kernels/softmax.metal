// A row a threadgroup: maximum and sum first in the SIMD groups, then through threadgroup memory.
#include <metal_stdlib>
using namespace metal;

constant constexpr uint kSimdgroups = 32;

static float sum_of(float value, threadgroup float* shared, uint lane, uint group, uint groups) {
  value = simd_sum(value);
  if (lane == 0) shared[group] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  value = lane < groups ? shared[lane] : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(value);
}

kernel void softmax(device const T* x [[buffer(0)]], device T* y [[buffer(1)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint group [[simdgroup_index_in_threadgroup]],
                    uint groups [[simdgroups_per_threadgroup]]) {
  threadgroup float shared[kSimdgroups];
  device const T* from = x + row * COLUMNS;
  device T* to = y + row * COLUMNS;
  float greatest = -INFINITY;
  for (uint i = thread_index; i < COLUMNS; i += threads) {
    greatest = max(greatest, static_cast<float>(from[i]));
  }
  greatest = simd_max(greatest);
  if (lane == 0) shared[group] = greatest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  greatest = simd_max(lane < groups ? shared[lane] : -INFINITY);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = thread_index; i < COLUMNS; i += threads) {
    sum += precise::exp(static_cast<float>(from[i]) - greatest);
  }
  sum = sum_of(sum, shared, lane, group, groups);
  for (uint i = thread_index; i < COLUMNS; i += threads) {
    to[i] = static_cast<T>(precise::exp(static_cast<float>(from[i]) - greatest) / sum);
  }
}

kernel void rms_norm(device const T* x [[buffer(0)]], device const T* weight [[buffer(1)]],
                     device T* y [[buffer(2)]], constant float& epsilon [[buffer(3)]],
                     uint row [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint group [[simdgroup_index_in_threadgroup]],
                     uint groups [[simdgroups_per_threadgroup]]) {
  threadgroup float shared[kSimdgroups];
  device const T* from = x + row * COLUMNS;
  float sum = 0.0f;
  for (uint i = thread_index; i < COLUMNS; i += threads) {
    const float value = static_cast<float>(from[i]);
    sum += value * value;
  }
  const float scale = rsqrt(sum_of(sum, shared, lane, group, groups) / COLUMNS + epsilon);
  for (uint i = thread_index; i < COLUMNS; i += threads) {
    y[row * COLUMNS + i] =
        static_cast<T>(static_cast<float>(from[i]) * scale * static_cast<float>(weight[i]));
  }
}
