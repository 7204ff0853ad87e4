// linear over weights that `quantize` wrote: rows of int8 or int4 codes with scales, in one to four
// segments.
//
// NPUSIM_PATH (common/paths.h) is GEMV_SIMT for few rows of x, in float32; TILE_MMA for 16-bit x:
// codes of int8 as they are, elements of int4 rounded to x's type; or TILE_SIMT.
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/linear_params.h"
#include "kernels/cuda/quantization/quantized_layout.h"

namespace npusim {

// Row `row` of W: segments follow one another.
inline QuantizedRow weight_row(void* const* operands, int64_t row) {
  QuantizedRow found(operands[1], params.rows[0], row);
  int64_t first = 0;
#pragma unroll
  for (int i = 1; i < params.segments; ++i) {
    first += params.rows[i - 1];
    if (row >= first) found = QuantizedRow(operands[1 + i], params.rows[i], row - first);
  }
  return found;
}

// A small unsigned integer as float, above a base: exact.
constexpr unsigned kFloatBase = 0x4b000000;  // 2^23
inline float above_base(unsigned code, float below) {
  return __uint_as_float(kFloatBase | code) - (8388608.0f + below);
}
// Byte i of a word of int8 codes.
inline float byte_code(unsigned word, int i) {
  const unsigned biased = word ^ 0x80808080u;
  return above_base(biased >> (8 * i) & 0xff, 128.0f);
}
// Element `e` of the 32 of int4 codes, less `kMiddle`.
template <int kMiddle>
float nibble_code(const uint4& v, int e) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
  const int word = e % 8;
  return above_base(words[word / 2] >> (word % 2 * 16 + e / 8 * 4) & 15, kMiddle);
}

}  // namespace npusim

#if NPUSIM_PATH == NPUSIM_PATH_GEMV_SIMT
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

inline void run(void* const* operands) {
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
#else
#include "kernels/cuda/matmul/linear_tile.h"

namespace npusim {

struct Source {
  struct Row {
    const X* x;
    int64_t end;
  };
  struct Column {
    QuantizedRow w;
    bool exists;
  };
  static constexpr int kWeightOperands = params.segments;
  void* const* operands;
  int64_t first_row, first_column, end;
  bool wide;

  Row a_row(int row) const {
    const int64_t at = first_row + row;
    const X* x = static_cast<const X*>(operands[0]);
    return at < params.m ? Row{x + at * params.ldx, end} : Row{x, -1};
  }
  Column b_column(int column) const {
    const auto [output, part] = tile_column(column);
    const int64_t at = first_column + output;
    if (at >= params.n) return {};
    return {weight_row(operands, at + part * params.n), true};
  }
  // int8 codes are multiplied without their scale.
  float scale(int64_t, int64_t column, int part) const {
    return kBytes ? *weight_row(operands, column + part * params.n).scale : 1.0f;
  }
#if NPUSIM_TENSOR_CORES
  template <bool kWide>
  void load_a(const Row& row, int64_t k, unsigned to) const {
    copy_chunk<kWide>(to, row.x + k, row.end - k);
  }
  // Padding of K holds zeros, which x's zeros meet.
  template <bool kWide>
  void load_b(const Column& column, int64_t k, unsigned to) const {
    if (!column.exists || k >= kPaddedK) return store_shared(to, {0, 0, 0, 0});
    unsigned out[4];
    if constexpr (kBytes) {
      const uint2 v = *reinterpret_cast<const uint2*>(column.w.codes + k);
      const unsigned words[2] = {v.x, v.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[i] = pack_pair<X>(byte_code(words[i / 2], i % 2 * 2),
                              byte_code(words[i / 2], i % 2 * 2 + 1));
      }
    } else {
      const uint4 v = *reinterpret_cast<const uint4*>(column.w.codes + k / 32 * 16);
      const int64_t group = k / kGroupSize;
      const float scale = to_float(column.w.scales[group]), zero = column.w.zero(group);
      const unsigned words[4] = {v.x, v.y, v.z, v.w};
      const int shift = k % 32 / 8 * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = above_base(words[i] >> shift & 15, 0.0f);
        const float high = above_base(words[i] >> (shift + 16) & 15, 0.0f);
        out[i] = pack_pair<X>((low - zero) * scale, (high - zero) * scale);
      }
    }
    store_shared(to, {out[0], out[1], out[2], out[3]});
  }
#else
  float a(const Row& row, int64_t k) const { return k < row.end ? to_float(row.x[k]) : 0.0f; }
  float b(const Column& column, int64_t k) const {
    if (!column.exists) return 0.0f;
    if constexpr (kBytes) return static_cast<float>(static_cast<int8_t>(column.w.codes[k]));
    const int64_t group = k / kGroupSize;
    const uint16_t word = reinterpret_cast<const uint16_t*>(column.w.codes)[k / 32 * 8 + k % 8];
    const float code = static_cast<float>(word >> (k % 32 / 8 * 4) & 15);
    return (code - column.w.zero(group)) * to_float(column.w.scales[group]);
  }
#endif
};

inline Source source_of(void* const* operands) {
  const bool wide = params.k % 8 == 0 && is_aligned(operands[0], 16) &&
                    (params.m == 1 || params.ldx * sizeof(X) % 16 == 0);
  return {operands, static_cast<int64_t>(blockIdx.x) * kTileRows,
          static_cast<int64_t>(blockIdx.y) * kOutputs, slice_end(), wide};
}
inline void run(void* const* operands) {
  run_tile(source_of(operands), operands);
}

}  // namespace npusim
#endif

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::run(operands);
}

#if NPUSIM_PATH != NPUSIM_PATH_GEMV_SIMT && NPUSIM_SPLIT > 1
extern "C" __global__ void __launch_bounds__(256) npusim_combine(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::combine(npusim::source_of(operands), operands);
}
#endif
