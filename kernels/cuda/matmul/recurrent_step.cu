// One step of a recurrence (ops/recurrent_step.py), of sums x·Wᵀ + bias and what is added to them:
//   plain  y = act(s)
//   GRU    y = (h - n) * sigmoid(z) + n, n = tanh(a_n + sigmoid(r) * s_n)
//   LSTM   y = sigmoid(o) * tanh(c'), c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
// NPUSIM_LANES lanes have the rows of W of one unit, one a gate, for NPUSIM_ROWS rows of x; the
// first of W are loaded before the launch waits for the step before.
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/entry.h"
#include "kernels/cuda/matmul/recurrent_cells.h"

namespace npusim {

using T = Storage<params.dtype>;
enum Operands {
  kX,
  kW,
  kBias,
  kAddend = kBias + params.has_bias,
  kState = kAddend + params.has_addend,
  kY = kState + (params.cell != kPlain),
  kNew
};
constexpr int kLanes = NPUSIM_LANES, kRows = NPUSIM_ROWS;
constexpr int kEach = 8;  // elements of K of a lane at once
constexpr int kK = static_cast<int>(params.k), kUnits = static_cast<int>(params.units);
constexpr int kRounds = (kK + kEach * kLanes - 1) / (kEach * kLanes);
constexpr int kHeld = kRounds < 2 ? kRounds : 2;  // rounds of W that are loaded before the wait
constexpr bool kPacked =
    params.k % kEach == 0 && params.ldx % kEach == 0 && params.ldw % kEach == 0;
constexpr bool kWeightsUnwritten = (unwritten_operands >> kW & 1) != 0;

struct alignas(16) Chunk {
  T elements[kEach];
};

// Elements of a row from `at` on; 0 behind its end.
inline Chunk load(const T* row, int at, bool wide) {
  Chunk chunk;
  if (wide && at < kK) return *reinterpret_cast<const Chunk*>(row + at);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    chunk.elements[e] = !wide && at + e < kK ? row[at + e] : T{};
  }
  return chunk;
}

inline void multiply(const Chunk (&w)[kGates], const T* x, int rows, int at, bool wide,
                     float (&sums)[kGates][kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    const Chunk chunk = load(x + r * params.ldx, at, wide);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float value = decode<float>(chunk.elements[e]);
#pragma unroll
      for (int g = 0; g < kGates; ++g) sums[g][r] += value * decode<float>(w[g].elements[e]);
    }
  }
}

// What one row and unit becomes, of its gates in the order of the cell.
inline void finish(void* const* operands, int64_t row, int unit, const float (&sums)[kGates]) {
  float s[kGates], a[kGates] = {};
#pragma unroll
  for (int g = 0; g < kGates; ++g) {
    const int64_t at = static_cast<int64_t>(params.gates[g]) * kUnits + unit;
    s[g] = sums[g];
    if constexpr (params.has_bias != 0) s[g] += static_cast<const float*>(operands[kBias])[at];
    if constexpr (params.has_addend != 0) {
      a[g] = decode<float>(static_cast<const T*>(operands[kAddend])[row * params.lda + at]);
    }
  }
  float before = 0.0f;
  if constexpr (params.cell != kPlain) {
    before = decode<float>(static_cast<const T*>(operands[kState])[row * params.lds + unit]);
  }
  const Updated now = update(s, a, before);
  static_cast<T*>(operands[kY])[row * params.ldy + unit] = encode<T>(now.y);
  if constexpr (params.cell == kLstm) {
    static_cast<T*>(operands[kNew])[row * params.ld_new + unit] = encode<T>(now.cell);
  }
}

inline void run(void* const* operands) {
  const int lane = threadIdx.x % kLanes;
  const int64_t found = (static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x) / kLanes;
  const int unit = static_cast<int>(found < kUnits ? found : kUnits - 1);  // all lanes fold
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRows;
  const int rows = static_cast<int>(params.m - first < kRows ? params.m - first : kRows);
  const T* w = static_cast<const T*>(operands[kW]);
  const T* x = static_cast<const T*>(operands[kX]) + first * params.ldx;
  const bool wide = kPacked && is_packed<16 / sizeof(T)>(w) &&
                    is_packed<16 / sizeof(T)>(static_cast<const T*>(operands[kX]));
  const auto row_of = [&](int g) {
    return w + (static_cast<int64_t>(params.gates[g]) * kUnits + unit) * params.ldw;
  };
  Chunk held[kHeld][kGates];
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      held[i][g] = load(row_of(g), (i * kLanes + lane) * kEach, wide);
    }
  }
  if constexpr (kWeightsUnwritten) wait_on_dependencies();
  float sums[kGates][kRows] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    multiply(held[i], x, rows, (i * kLanes + lane) * kEach, wide, sums);
  }
#pragma unroll 2
  for (int i = kHeld; i < kRounds; ++i) {
    const int at = (i * kLanes + lane) * kEach;
    Chunk loaded[kGates];
#pragma unroll
    for (int g = 0; g < kGates; ++g) loaded[g] = load(row_of(g), at, wide);
    multiply(loaded, x, rows, at, wide, sums);
  }
  float own[kGates] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      const float sum = fold_warp<kLanes>(sums[g][r], [](float a, float b) { return a + b; });
      if (lane == r) own[g] = sum;
    }
  }
  if (lane < rows && found < kUnits) finish(operands, first + lane, unit, own);
}

}  // namespace npusim

NPUSIM_ENTRY {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}
