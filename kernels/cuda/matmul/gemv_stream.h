// Matrix products of few rows of x, bound by loading W: W is streamed once from global memory, in
// loads of 16 bytes, and a warp issues the loads of a whole slice of K before it needs the first.
// Where x is normalised on the way, the norm's scale, one number a row of x, is known at the end
// and applied to the sums.
//
// `Rows` tells where W lies: `const W* row(int64_t row)`, `const W* norm()` where x is normalised,
// and `bool wide()`, whether all rows, of x too, begin on 16 bytes.
//
// NPUSIM_SPLIT warps of a block share K (sliced-K); their sums are added in order in shared memory.
// NPUSIM_ROWS is how many columns of y (GEMV_SIMT), or blocks of eight columns (GEMV_MMA), a warp
// computes at once. The first slice is loaded before the wait for x where `kWeightsUnwritten`.
#pragma once
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/matmul/gemv_epilogue.h"
#include "kernels/cuda/matmul/linear_operands.h"

namespace npusim {

constexpr int kWarps = NPUSIM_BLOCK / 32, kSplit = NPUSIM_SPLIT, kRows = NPUSIM_ROWS;
constexpr int kGroups = kWarps / kSplit;  // groups of warps, each with columns of its own
constexpr int kStreams = kRows * kParts;  // rows of W that a lane reads at once
constexpr int kInFlight = NPUSIM_LOADS;   // loads of a lane before the first is used
constexpr int kM = static_cast<int>(params.m);
static_assert(kWarps % kSplit == 0);

inline void store_output(const Epilogue& epilogue, int64_t row, int64_t column,
                         const float (&v)[kParts]) {
  if constexpr (kParts == 2) {
    epilogue.store(row * params.ldy + column,
                   epilogue.finish_gated(v[0], v[kParts - 1], column, params.n));
  } else {
    epilogue.store(row * params.ldy + column, epilogue.finish(v[0], row * params.ldr, column));
  }
}

template <typename X, typename W, typename Rows>
void stream_rows(const Rows& weights, const X* x, const Epilogue& epilogue) {
  constexpr int kEach = 16 / sizeof(W);         // elements of a load
  constexpr int64_t kLoads = params.k / kEach;  // of a row
  constexpr int64_t kLanes = 32 * kSplit;
  constexpr int kSteps = static_cast<int>(ceil_div(kLoads, kLanes));
  constexpr int kUnroll = larger(1, smaller(kSteps, kInFlight / kStreams));
  static_assert(kRows * kM <= kLanes);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = warp / kSplit, slice = warp % kSplit, place = slice * 32 + lane;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kGroups + group) * kRows;

  const W* w[kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    const int64_t column = smaller<int64_t>(first + i % kRows, params.n - 1);
    w[i] = weights.row(column + i / kRows * params.n);
  }
  PendingOutput output(place / kRows, first + place % kRows, place < kRows * kM);
  if constexpr (kBiasUnwritten) output.read_bias(epilogue);
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  const W* norm = kNormed ? weights.norm() : nullptr;
  float sums[kStreams][kM] = {}, squares[kM] = {};
  int64_t rest = 0;  // where elements begin that are read one by one
  const bool wide = weights.wide();
  if (wide) {
    rest = kLoads * kEach;
#pragma unroll 1
    for (int step = 0; step < kSteps; step += kUnroll) {
      uint4 loaded[kUnroll][kStreams], gains[kNormed ? kUnroll : 1];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t at = (step + u) * kLanes + place;
        if (kNormed && at < kLoads) gains[u] = load_kept(norm + at * kEach);
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
          loaded[u][i] = uint4{0, 0, 0, 0};
          if (at < kLoads) loaded[u][i] = load_once(w[i] + at * kEach);
        }
      }
      if (step == 0) {
        if constexpr (kWeightsUnwritten) wait_on_dependencies();
        output.read_residual(epilogue);
      }
      const float zero = zero_on_arrival(loaded);
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
#pragma unroll
        for (int m = 0; m < kM; ++m) sums[i][m] += zero;
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t at = (step + u) * kLanes + place;
        if (at >= kLoads) continue;
        float v[kStreams][kEach];
#pragma unroll
        for (int i = 0; i < kStreams; ++i) unpack<W>(loaded[u][i], v[i]);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          float row[kEach];
          load_floats<kEach>(x + m * params.ldx + at * kEach, row);
          if constexpr (kNormed) {
            float gain[kEach];
            unpack<W>(gains[u], gain);
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
              squares[m] += row[e] * row[e];
              row[e] *= gain[e];
            }
          }
#pragma unroll
          for (int i = 0; i < kStreams; ++i) {
#pragma unroll
            for (int e = 0; e < kEach; ++e) sums[i][m] += row[e] * v[i][e];
          }
        }
      }
    }
  }
  if (!wide || kSteps == 0) {
    if constexpr (kWeightsUnwritten) wait_on_dependencies();
    output.read_residual(epilogue);
  }
  if constexpr (!kBiasUnwritten) output.read_bias(epilogue);
#pragma unroll 1
  for (int64_t at = rest + place; at < params.k; at += kLanes) {
    const float gain = kNormed ? to_float(norm[at]) : 1.0f;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float v = to_float(x[m * params.ldx + at]);
      squares[m] += v * v;
#pragma unroll
      for (int i = 0; i < kStreams; ++i) sums[i][m] += v * gain * to_float(w[i][at]);
    }
  }

  __shared__ float parts[kGroups][kSplit][kStreams + (kNormed ? 1 : 0)][kM];
  if constexpr (kNormed) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int far = 16; far > 0; far /= 2) {
        squares[m] += __shfl_xor_sync(0xffffffffu, squares[m], far);
      }
      if (lane == 0) parts[group][slice][kStreams][m] = squares[m];
    }
  }
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int far = 16; far > 0; far /= 2) {
        sums[i][m] += __shfl_xor_sync(0xffffffffu, sums[i][m], far);
      }
      if (lane == 0) parts[group][slice][i][m] = sums[i][m];
    }
  }
  __syncthreads();
  if (!output.exists) return;
  float v[kParts] = {};
#pragma unroll
  for (int s = 0; s < kSplit; ++s) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      v[part] += parts[group][s][part * kRows + place % kRows][output.m];
    }
  }
  if constexpr (kNormed) {
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < kSplit; ++s) total += parts[group][s][kStreams][output.m];
    const float scale = scalar::rsqrt(total / static_cast<float>(params.k) + kNormEps);
#pragma unroll
    for (int part = 0; part < kParts; ++part) v[part] *= scale;
  }
  output.store(epilogue, v);
}

constexpr int kHalves = kM > 8 ? 2 : 1;  // of the sixteen rows of the tensor core's A

// Sums of the columns whose rows of W are `w`, over this warp's share of K. kWide: all rows lie on
// 16 bytes and end there.
template <bool kWide, typename T>
void multiply_columns(const T* const (&w)[kStreams], const T* x, float (&sums)[kStreams][4]) {
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  constexpr int64_t kChunks = ceil_div(params.k, 8);
  constexpr int64_t kLanes = 4 * kSplit;
  constexpr int kSteps = static_cast<int>(ceil_div(kChunks, kLanes));
  constexpr int kUnroll = kWide ? larger(1, smaller(kSteps, kInFlight / kStreams)) : 1;
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32 % kSplit;
  const auto chunk = [](const T* row, int64_t at) -> uint4 {
    if constexpr (kWide) return *reinterpret_cast<const uint4*>(row + at * 8);
    return load_chunk(row + at * 8, params.k - at * 8);
  };
  if (kWeightsUnwritten && kSteps == 0) wait_on_dependencies();
#pragma unroll 1
  for (int step = 0; step < kSteps; step += kUnroll) {
    uint4 b[kUnroll][kStreams];
    const int64_t first = static_cast<int64_t>(step) * kLanes + slice * 4 + lane % 4;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + u * kLanes;
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        b[u][i] = uint4{0, 0, 0, 0};
        if (at < kChunks) b[u][i] = kWide ? load_once(w[i] + at * 8) : chunk(w[i], at);
      }
    }
    if (kWeightsUnwritten && step == 0) wait_on_dependencies();
    const float zero = zero_on_arrival(b);
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][e] += zero;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + u * kLanes;
      uint4 a[2] = {};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int row = lane / 4 + half * 8;
        if (row < kM && at < kChunks) a[half] = chunk(x + row * params.ldx, at);
      }
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        mma_16x8x16<T>(sums[i], a[0].x, a[1].x, a[0].y, a[1].y, b[u][i].x, b[u][i].y);
        mma_16x8x16<T>(sums[i], a[0].z, a[1].z, a[0].w, a[1].w, b[u][i].z, b[u][i].w);
      }
    }
  }
}

// Eight columns of y at a time: x is the tensor core's A, of up to 16 rows, and W its B. The order
// of K within 32 elements is free as long as both agree: lane t of four takes elements 8t to 8t +
// 7, which are 16 bytes, for two instructions.
template <typename T, typename Rows>
void stream_columns(const Rows& weights, const T* x, const Epilogue& epilogue) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = warp / kSplit, slice = warp % kSplit;
  const int g = lane / 4, t = lane % 4;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kGroups + group) * kRows * 8;

  const T* w[kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    const int64_t column = smaller<int64_t>(first + i % kRows * 8 + g, params.n - 1);
    w[i] = weights.row(column + i / kRows * params.n);
  }
  float sums[kStreams][4] = {};
  if (params.k % 8 == 0 && weights.wide()) {
    multiply_columns<true>(w, x, sums);
  } else {
    multiply_columns<false>(w, x, sums);
  }

  __shared__ float parts[kGroups][kSplit][kStreams][kHalves * 8][8];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
#pragma unroll
    for (int e = 0; e < kHalves * 2; ++e) {
      parts[group][slice][i][g + e / 2 * 8][t * 2 + e % 2] = sums[i][e];
    }
  }
  __syncthreads();
  for (int at = slice * 32 + lane; at < kM * kRows * 8; at += 32 * kSplit) {
    const int m = at / (kRows * 8), column = at % (kRows * 8);
    float v[kParts] = {};
#pragma unroll
    for (int s = 0; s < kSplit; ++s) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        v[part] += parts[group][s][part * kRows + column / 8][m][column % 8];
      }
    }
    if (first + column < params.n) store_output(epilogue, m, first + column, v);
  }
}

}  // namespace npusim
