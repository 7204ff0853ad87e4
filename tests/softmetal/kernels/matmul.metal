// c = a b in tiles of 16×16: four SIMD groups, each an 8×8 part, over threadgroup memory.
#include <metal_stdlib>
using namespace metal;

kernel void matmul(device const T* a [[buffer(0)]], device const T* b [[buffer(1)]],
                   device float* c [[buffer(2)]], uint2 tile [[threadgroup_position_in_grid]],
                   uint thread_index [[thread_index_in_threadgroup]],
                   uint group [[simdgroup_index_in_threadgroup]]) {
  threadgroup T left[16 * 16];
  threadgroup T right[16][16];
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  const uint row = group / 2 * 8, column = group % 2 * 8;
  for (uint k = 0; k < K; k += 16) {
    for (uint i = thread_index; i < 256; i += 128) {
      left[i] = a[(tile.y * 16 + i / 16) * K + k + i % 16];
      right[i / 16][i % 16] = b[(k + i / 16) * N + tile.x * 16 + i % 16];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint step = 0; step < 16; step += 8) {
      simdgroup_matrix<T, 8, 8> x, y;
      simdgroup_load(x, left + row * 16 + step, 16);
      simdgroup_load(y, &right[step][column], 16);
      simdgroup_multiply_accumulate(sum, x, y, sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(sum, c + (tile.y * 16 + row) * N + tile.x * 16 + column, N);
}
