// Attention by multiply-adds, for float32. A block of 16 by 16 threads has 64 rows and passes over
// tiles of 64 keys; each thread has four rows by four keys, then four rows by columns of v.
#pragma once
#include "kernels/cuda/attention/rows.h"

namespace npusim {

constexpr int kThreads = 256, kTile = 64, kBlockRows = 64, kPitch = 68;
constexpr int kVQuads = (kV + 63) / 64;  // four columns of v each, 64 apart, that a thread has

struct alignas(16) Quad {
  float v[4];
};
inline Quad quad(const float* p) {
  return *reinterpret_cast<const Quad*>(p);
}

struct alignas(16) Shared {
  float q[kD][kPitch], k[kD][kPitch];  // by column
  float v[kTile][kVQuads * 64];
  float weights[kTile][kPitch];  // by key
};

extern __shared__ __align__(128) unsigned char shared_memory[];

inline void run(void* const* operands) {
  KeysInUse keys;
  if (!keys.read(operands)) return;
  Shared& s = *reinterpret_cast<Shared*>(shared_memory);
  const Head head(operands);
  const int first_row = static_cast<int>(blockIdx.x) * kBlockRows;
  const Tiles tiles(keys, first_row, kBlockRows, kTile);
  if (tiles.is_empty()) return;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;

  for (int i = threadIdx.x; i < kBlockRows * kD; i += kThreads) {
    const int row = i / kD, d = i % kD;
    s.q[d][row] = first_row + row < kRows ? to_float(head.q_row(first_row + row)[d]) : 0.0f;
  }
  int64_t visible_end[4], visible_begin[4];
  MaskRow mask[4];
  float row_max[4], row_sum[4], sums[4][kVQuads][4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = smaller(first_row + ty * 4 + r, kRows - 1);
    visible_end[r] = keys.visible_end(Head::query(row));
    visible_begin[r] = keys.visible_begin(Head::query(row));
    if constexpr (params.has_mask != 0) mask[r] = MaskRow(operands, head, row);
    row_max[r] = kMasked;
    row_sum[r] = 0.0f;
#pragma unroll
    for (int j = 0; j < kVQuads; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[r][j][e] = 0.0f;
    }
  }

#pragma unroll 1
  for (int tile = tiles.first; tile < tiles.last; ++tile) {
    const int64_t first_key = tiles.begin + static_cast<int64_t>(tile) * kTile;
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kD; i += kThreads) {
      const int64_t key = first_key + i / kD;
      s.k[i % kD][i / kD] =
          key < tiles.end ? to_float(head.k[key * params.k_strides[2] + i % kD]) : 0.0f;
    }
    for (int i = threadIdx.x; i < kTile * kVQuads * 64; i += kThreads) {
      const int64_t key = first_key + i / (kVQuads * 64);
      const int d = i % (kVQuads * 64);
      s.v[i / (kVQuads * 64)][d] =
          key < tiles.end && d < kV ? to_float(head.v[key * params.v_strides[2] + d]) : 0.0f;
    }
    __syncthreads();
    float scores[4][4] = {};
#pragma unroll 4
    for (int d = 0; d < kD; ++d) {
      const Quad q = quad(&s.q[d][ty * 4]), k = quad(&s.k[d][tx * 4]);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[r][e] += q.v[r] * k.v[e];
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float new_max = row_max[r];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t key = first_key + tx * 4 + e;
        const bool sees = key < visible_end[r] && key >= visible_begin[r];
        float score = scaled(scores[r][e]);
        if constexpr (params.has_mask != 0) {
          if (sees) score += mask[r].at(key);
        }
        scores[r][e] = sees ? score : kMasked;
        new_max = fmaxf(new_max, scores[r][e]);
      }
#pragma unroll
      for (int far = 8; far > 0; far /= 2) {
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, far));
      }
      const float correction = rescale(row_max[r], new_max),
                  base = new_max == kMasked ? 0.0f : new_max;
      float sum = 0.0f;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float weight = exp2f(scores[r][e] - base);
        s.weights[tx * 4 + e][ty * 4 + r] = weight;
        sum += weight;
      }
      row_max[r] = new_max;
      row_sum[r] = row_sum[r] * correction + sum;  // of this thread's keys
#pragma unroll
      for (int j = 0; j < kVQuads; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[r][j][e] *= correction;
      }
    }
    __syncthreads();
#pragma unroll 4
    for (int key = 0; key < kTile; ++key) {
      const Quad weight = quad(&s.weights[key][ty * 4]);
#pragma unroll
      for (int j = 0; j < kVQuads; ++j) {
        const Quad v = quad(&s.v[key][j * 64 + tx * 4]);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[r][j][e] += weight.v[r] * v.v[e];
        }
      }
    }
  }

  const Results results(operands);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int far = 8; far > 0; far /= 2) {
      row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], far);
    }
    const int row = first_row + ty * 4 + r;
    if (row >= kRows) continue;
#pragma unroll
    for (int j = 0; j < kVQuads; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = j * 64 + tx * 4 + e;
        if (column < kV) results.store(head, row, column, sums[r][j][e], row_max[r], row_sum[r]);
      }
    }
  }
}

}  // namespace npusim
