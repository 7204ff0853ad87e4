// All steps of a recurrence (ops/recurrence.py) in one launch: a block has some rows, which need no
// other block's, and holds W from the first step to the last. A warp has eight units with all their
// gates, and a step ends with one barrier of the block; states are in shared memory twice.
//
//   16 bits: W is the first operand of the tensor cores, in registers, the eight rows the second.
//            Of two tiles of 16 rows of W, four gates of eight units, a lane gets all gates of one
//            unit for two columns, of which it ends both, or the first where a block has four rows.
//   float32: W is in shared memory, an element a lane, and multiplied by multiply-adds. A lane has
//            a gate of a unit, and gives its sums to the lane that ends the row.
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/entry.h"
#include "kernels/cuda/common/mma.h"
#include "kernels/cuda/common/paths.h"
#include "kernels/cuda/common/tile_memory.h"
#include "kernels/cuda/matmul/recurrent_cells.h"

namespace npusim {

using T = Storage<params.dtype>;
enum Operands {
  kSums,
  kW,
  kBias,
  kHidden = kBias + params.has_bias,
  kState,
  kY = kState + (params.cell == kLstm),
  kNew
};
constexpr int kUnits = static_cast<int>(params.units), kEach = 8;  // units of a warp
constexpr int kWarps = NPUSIM_BLOCK / 32, kRows = NPUSIM_ROWS;
constexpr bool kWeightsUnwritten = (unwritten_operands >> kW & 1) != 0;

inline int64_t row_of_gate(int gate, int unit) {
  return static_cast<int64_t>(params.gates[gate]) * kUnits + unit;
}

// What a lane knows of one row and unit that it ends: its place, its bias, what is added to a
// step's sums, loaded a step before, and its state.
struct Ended {
  bool exists;
  const T* sums;
  T* y;
  T added[kGates];
  float state;

  Ended() = default;
  Ended(void* const* operands, int64_t row, int unit)
      : exists(row < params.m && unit < kUnits),
        sums(static_cast<const T*>(operands[kSums]) + row * params.sums_row + unit),
        y(static_cast<T*>(operands[kY]) + row * params.y_row + unit),
        state(0.0f) {
    constexpr int kLast = params.cell == kLstm ? kState : kHidden;
    if (params.cell != kPlain && exists) {
      state = decode<float>(static_cast<const T*>(operands[kLast])[row * kUnits + unit]);
    }
  }

  void load(int64_t place) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      if (exists) added[g] = sums[place * params.sums_step + row_of_gate(g, 0)];
    }
  }

  // Ends a step, and returns its result as it is stored.
  T end(const float (&s)[kGates], const float (&a)[kGates], int64_t place) {
    const Updated now = update(s, a, state);
    const T result = encode<T>(now.y);
    state = decode<float>(params.cell == kLstm ? encode<T>(now.cell) : result);
    if (exists) y[place * params.y_step] = result;
    return result;
  }
};

inline int64_t place_of(int64_t step) {
  return params.reverse != 0 ? params.steps - 1 - step : step;
}

template <typename Bias>
inline void load_bias(void* const* operands, int unit, Bias& bias) {
  if constexpr (params.has_bias != 0) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      if (unit < kUnits) {
        bias[g] = static_cast<const float*>(operands[kBias])[row_of_gate(g, unit)];
      }
    }
  }
}

inline void keep_last(void* const* operands, int64_t row, int unit, const Ended& ended) {
  if constexpr (params.cell == kLstm) {
    if (ended.exists) {
      static_cast<T*>(operands[kNew])[row * kUnits + unit] = encode<T>(ended.state);
    }
  }
}

#if NPUSIM_PATH == NPUSIM_PATH_TILE_MMA
constexpr int kColumns = 8, kOwn = kRows / 4;  // rows that a lane ends
static_assert(kRows == 4 || kRows == 8);
constexpr int kBlocksOfK = (kUnits + 15) / 16, kTiles = (kGates + 1) / 2;
constexpr int kStride = kBlocksOfK * 16 + 8;  // so that rows begin in other banks

// Elements `at` and the next of a gate's row of W; 0 behind its end, and of no gate or unit.
inline unsigned pair_of(const T* w, int gate, int unit, int at) {
  if (gate >= kGates || unit >= kUnits) return 0;
  const T* const row = w + row_of_gate(gate, unit) * params.ldw;
  const unsigned low = at < kUnits ? row[at].bits : 0;
  return low | static_cast<unsigned>(at + 1 < kUnits ? row[at + 1].bits : 0) << 16;
}

inline void run(void* const* operands) {
  T* const states = reinterpret_cast<T*>(shared_memory);  // [2][columns][kStride]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int unit = warp * kEach + g;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const T* const w = static_cast<const T*>(operands[kW]);
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  unsigned held[kTiles][kBlocksOfK][4];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int k = 0; k < kBlocksOfK; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        held[tile][k][i] = pair_of(w, 2 * tile + i % 2, unit, k * 16 + i / 2 * 8 + 2 * t);
      }
    }
  }
  if constexpr (kWeightsUnwritten) wait_on_dependencies();
  float bias[kGates] = {};
  load_bias(operands, unit, bias);
  Ended ended[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    ended[i] = Ended(operands, first + t * kOwn + i, unit);
    ended[i].load(place_of(0));
  }
  for (int i = threadIdx.x; i < 2 * kColumns * kStride; i += NPUSIM_BLOCK) {
    const int column = i / kStride % kColumns, k = i % kStride;
    const int64_t row = first + column / 2 * kOwn + column % 2;
    const bool given = i < kColumns * kStride && column % 2 < kOwn && k < kUnits && row < params.m;
    states[i] = given ? static_cast<const T*>(operands[kHidden])[row * kUnits + k] : T{};
  }
  __syncthreads();
  for (int64_t step = 0; step < params.steps; ++step) {
    const T* const from = states + step % 2 * kColumns * kStride + g * kStride + 2 * t;
    T* const to = states + (step + 1) % 2 * kColumns * kStride + unit;
    float added[kOwn][kGates];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        added[i][gate] = ended[i].exists ? decode<float>(ended[i].added[gate]) : 0.0f;
      }
      if (step + 1 < params.steps) ended[i].load(place_of(step + 1));
    }
    float sums[2][kTiles][4] = {};  // of even and of odd blocks: two chains for each tile
#pragma unroll
    for (int k = 0; k < kBlocksOfK; ++k) {
      const unsigned b0 = *reinterpret_cast<const unsigned*>(from + k * 16);
      const unsigned b1 = *reinterpret_cast<const unsigned*>(from + k * 16 + 8);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const unsigned (&a)[4] = held[tile][k];
        mma_16x8x16<T>(sums[k % 2][tile], a[0], a[1], a[2], a[3], b0, b1);
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float s[kGates];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const int at = gate % 2 * 2 + i;
        s[gate] = sums[0][gate / 2][at] + sums[1][gate / 2][at] + bias[gate];
      }
      const T result = ended[i].end(s, added[i], place_of(step));
      if (unit < kUnits) to[(2 * t + i) * kStride] = result;
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) keep_last(operands, first + t * kOwn + i, unit, ended[i]);
}
#else
constexpr int kWide = (kUnits + 3) / 4 * 4;          // of a row of states: loaded by four
constexpr int kSlots = 4;                            // lanes of a unit, one a gate
constexpr int kOwn = (kRows + kSlots - 1) / kSlots;  // rows that a lane ends

inline void run(void* const* operands) {
  float* const weights = reinterpret_cast<float*>(shared_memory);  // [k][warp][lane]
  float* const states = weights + kWide * NPUSIM_BLOCK;            // [2][rows][kWide]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = lane / kEach;
  const int unit = warp * kEach + lane % kEach;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  const bool has_row = slot < kGates && unit < kUnits;
  const T* const row =
      static_cast<const T*>(operands[kW]) + (has_row ? row_of_gate(slot, unit) * params.ldw : 0);
#pragma unroll 4
  for (int k = 0; k < kWide; ++k) {
    weights[k * NPUSIM_BLOCK + threadIdx.x] = has_row && k < kUnits ? row[k] : 0.0f;
  }
  if constexpr (kWeightsUnwritten) wait_on_dependencies();
  float bias[kGates] = {};
  load_bias(operands, unit, bias);
  Ended ended[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int own = i * kSlots + slot;
    ended[i] = Ended(operands, own < kRows ? first + own : params.m, unit);
    ended[i].load(place_of(0));
  }
  for (int i = threadIdx.x; i < 2 * kRows * kWide; i += NPUSIM_BLOCK) {
    const int r = i / kWide % kRows, k = i % kWide;
    const bool given = i < kRows * kWide && k < kUnits && first + r < params.m;
    states[i] = given ? static_cast<const T*>(operands[kHidden])[(first + r) * kUnits + k] : 0.0f;
  }
  __syncthreads();
  for (int64_t step = 0; step < params.steps; ++step) {
    const float* const from = states + step % 2 * kRows * kWide;
    float* const to = states + (step + 1) % 2 * kRows * kWide + unit;
    float added[kOwn][kGates];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        added[i][gate] = ended[i].exists ? ended[i].added[gate] : 0.0f;
      }
      if (step + 1 < params.steps) ended[i].load(place_of(step + 1));
    }
    float sums[kRows] = {};
#pragma unroll 4
    for (int k = 0; k < kWide; k += 4) {
      float part[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) part[e] = weights[(k + e) * NPUSIM_BLOCK + threadIdx.x];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint4 x = *reinterpret_cast<const uint4*>(from + r * kWide + k);
        sums[r] += __builtin_bit_cast(float, x.x) * part[0];
        sums[r] += __builtin_bit_cast(float, x.y) * part[1];
        sums[r] += __builtin_bit_cast(float, x.z) * part[2];
        sums[r] += __builtin_bit_cast(float, x.w) * part[3];
      }
    }
    float s[kOwn][kGates] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const float sum = __shfl_sync(0xffffffffU, sums[r], gate * kEach + lane % kEach);
        if (slot == r % kSlots) s[r / kSlots][gate] = sum + bias[gate];
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int own = i * kSlots + slot;
      const T result = ended[i].end(s[i], added[i], place_of(step));
      if (own < kRows && unit < kUnits) to[own * kWide] = result;
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) keep_last(operands, first + i * kSlots + slot, unit, ended[i]);
}
#endif

}  // namespace npusim

NPUSIM_ENTRY {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();  // few blocks: the next launch gets its weights beside them
  npusim::run(operands);
}
