// Products of few rows of x with rows of codes, which warps stream from global memory, by
// multiply-adds in float32. NPUSIM_SPLIT warps of a block share K, NPUSIM_ROWS columns are a
// warp's, and a lane has NPUSIM_LOADS loads of 16 bytes in flight.
#pragma once
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/quantization/quantized_operands.h"

namespace npusim {

constexpr int kWarps = NPUSIM_BLOCK / 32, kSplit = NPUSIM_SPLIT, kColumns = NPUSIM_ROWS;
constexpr int kGroupsOfWarps = kWarps / kSplit;  // groups of warps, each with columns of its own
constexpr int kStreams = kColumns * kParts;
constexpr int kM = static_cast<int>(params.m);
constexpr int kEach = kBytes ? 16 : 32;  // elements of a load
constexpr int64_t kLoads = kPaddedK / kEach;

// `kEach` elements of a row of x; 0 beyond K.
inline void load_x(const X* x, int64_t at, bool wide, float (&v)[kEach]) {
  if (wide && at + kEach <= params.k) {
    load_floats<kEach>(x + at, v);
  } else {
#pragma unroll
    for (int e = 0; e < kEach; ++e) v[e] = at + e < params.k ? to_float(x[at + e]) : 0.0f;
  }
}

inline void stream_codes(void* const* operands) {
  constexpr int64_t kLanes = 32 * kSplit;
  constexpr int kSteps = static_cast<int>(ceil_div(kLoads, kLanes));
  constexpr int kUnroll = larger(1, smaller(kSteps, NPUSIM_LOADS / kStreams));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_group = warp / kSplit, slice = warp % kSplit;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kGroupsOfWarps + warp_group) * kColumns;
  const X* x = static_cast<const X*>(operands[0]);
  const bool wide = is_aligned(x, 16) && (kM == 1 || params.ldx * sizeof(X) % 16 == 0);

  QuantizedRow w[kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    const int64_t column = smaller<int64_t>(first + i % kColumns, params.n - 1);
    w[i] = weight_row(operands, column + i / kColumns * params.n);
  }
  float sums[kStreams][kM] = {};
#pragma unroll 1
  for (int step = 0; step < kSteps; step += kUnroll) {
    uint4 loaded[kUnroll][kStreams];
    const int64_t base = static_cast<int64_t>(step) * kLanes + slice * 32 + lane;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        loaded[u][i] = uint4{0, 0, 0, 0};
        if (base + u * kLanes < kLoads)
          loaded[u][i] = load_once(w[i].codes + (base + u * kLanes) * 16);
      }
    }
    const float zero = zero_on_arrival(loaded);
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
#pragma unroll
      for (int m = 0; m < kM; ++m) sums[i][m] += zero;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = base + u * kLanes;
      if (at >= kLoads) continue;
      const int64_t group = at * kEach / kGroupSize;
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        float code[kEach];
        const float less = params.format == kAsymmetric ? w[i].zero(group) : 0.0f;
        const unsigned words[4] = {loaded[u][i].x, loaded[u][i].y, loaded[u][i].z, loaded[u][i].w};
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          if constexpr (kBytes) {
            code[e] = byte_code(words[e / 4], e % 4);
          } else if constexpr (params.format == kAsymmetric) {
            code[e] = nibble_code<0>(loaded[u][i], e) - less;
          } else {
            code[e] = nibble_code<8>(loaded[u][i], e);
          }
        }
        const float scale = kBytes ? 1.0f : to_float(w[i].scales[group]);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          float row[kEach], dot = 0.0f;
          load_x(x + m * params.ldx, at * kEach, wide, row);
#pragma unroll
          for (int e = 0; e < kEach; ++e) dot += row[e] * code[e];
          sums[i][m] += dot * scale;
        }
      }
    }
  }

  __shared__ float parts[kGroupsOfWarps][kSplit][kStreams][kM];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    const float scale = kBytes ? *w[i].scale : 1.0f;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int far = 16; far > 0; far /= 2) {
        sums[i][m] += __shfl_xor_sync(0xffffffffu, sums[i][m], far);
      }
      if (lane == 0) parts[warp_group][slice][i][m] = sums[i][m] * scale;
    }
  }
  __syncthreads();
  const Epilogue epilogue(operands, params.segments);
  for (int at = slice * 32 + lane; at < kColumns * kM; at += kLanes) {
    const int column = at % kColumns, m = at / kColumns;
    float v[kParts] = {};
#pragma unroll
    for (int s = 0; s < kSplit; ++s) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        v[part] += parts[warp_group][s][part * kColumns + column][m];
    }
    if (first + column >= params.n) continue;
    const int64_t y = m * params.ldy + first + column;
    if constexpr (kParts == 2) {
      epilogue.store(y, epilogue.finish_gated(v[0], v[kParts - 1], first + column, params.n));
    } else {
      epilogue.store(y, epilogue.finish(v[0], m * params.ldr, first + column));
    }
  }
}

}  // namespace npusim
