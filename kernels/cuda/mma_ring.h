// Products of one row of x by blocks that fill the device once. A block has NPUSIM_COLUMNS columns
// of y, whose rows of W pass through shared memory: a warp asks for NPUSIM_STAGES columns ahead of
// the one it multiplies. What a lane copies it reads itself, so no warp waits for another but at
// the end. NPUSIM_SPLIT warps of a block share K; their sums are added in order.
//
// The first columns are asked for before the wait for x where `kWeightsSettled`. That they wait in
// shared memory, not in registers, lets blocks of the next launches stand beside these and ask for
// theirs. Included where X, W and the rest are known that mma_stream.h names, and all rows of W end
// on 16 bytes.
#pragma once

namespace npusim {

constexpr int kWarps = NPUSIM_BLOCK / 32, kSplit = NPUSIM_SPLIT;
constexpr int kGroups = kWarps / kSplit;  // groups of warps, each with columns of its own
constexpr int kColumns = NPUSIM_COLUMNS, kStages = NPUSIM_STAGES;
constexpr int kAhead = NPUSIM_AHEAD;   // columns of a group, behind those, for the second cache
constexpr int kEach = 16 / sizeof(W);  // elements of a load
constexpr int kLoads = static_cast<int>(params.k / kEach), kLanes = 32 * kSplit;  // of a row
constexpr int kSteps = static_cast<int>(ceil_div(kLoads, kLanes));
constexpr int kSlot = kParts * kSteps * 512;  // bytes of a warp's share of a column's rows
static_assert(params.m == 1 && params.k % kEach == 0);
static_assert(kWarps % kSplit == 0 && kColumns <= NPUSIM_BLOCK);

extern __shared__ __align__(128) unsigned char shared_memory[];

// 16 bytes that do not lie on 16.
template <typename T>
uint4 gather_load(const T* from) {
  constexpr int kIn = 4 / sizeof(T);  // elements of a word
  unsigned words[4] = {};
#pragma unroll
  for (int i = 0; i < 4 * kIn; ++i) {
    if constexpr (kIn == 1) {
      words[i] = __builtin_bit_cast(unsigned, from[i]);
    } else {
      words[i / kIn] |= static_cast<unsigned>(from[i].bits) << (i % kIn * 16);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// A warp's columns: every kGroups-th of the block's, from `first` on. kWide: all rows begin on 16
// bytes.
template <bool kWide, typename W, typename Rows>
struct Ring {
  const Rows& weights;
  int64_t first;
  int count, place;

  // Asks for the rows of column `i`, for the slot at `slot`.
  void fill(int i, unsigned slot) const {
    if (i < count) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const W* row = weights.row(first + static_cast<int64_t>(i) * kGroups + part * params.n);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const int at = step * kLanes + place;
          const bool exists = (step + 1) * kLanes <= kLoads || at < kLoads;
          const W* from = row + (exists ? at : 0) * kEach;
          const unsigned to = slot + (part * kSteps + step) * 512;
          if constexpr (kWide) {
            copy_async_once(to, from, exists);
          } else {
            store_shared(to, exists ? gather_load(from) : uint4{0, 0, 0, 0});
          }
        }
      }
    }
    commit_copies();
  }

  // Has the rows behind the first kStages columns brought to the second cache.
  void fetch_ahead() const {
    if (place != 0) return;
#pragma unroll 1
    for (int i = kStages; i < smaller(count, kStages + kAhead); ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        fetch(weights.row(first + static_cast<int64_t>(i) * kGroups + part * params.n),
              kLoads * 16);
      }
    }
  }
};

// This lane's elements of x, times the norm's weight; returns the sum of their squares.
template <bool kWide, typename W, typename X>
float read_row(const X* x, const uint4 (&gains)[kSteps], int place, float (&row)[kSteps][kEach]) {
  float squares = 0.0f;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int at = step * kLanes + place;
    const bool exists = (step + 1) * kLanes <= kLoads || at < kLoads;
#pragma unroll
    for (int e = 0; e < kEach; ++e) row[step][e] = 0.0f;
    if (!exists) continue;
    if constexpr (kWide) {
      load_floats<kEach>(x + at * kEach, row[step]);
    } else {
#pragma unroll
      for (int e = 0; e < kEach; ++e) row[step][e] = to_float(x[at * kEach + e]);
    }
  }
  if constexpr (kNormed) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float gain[kEach];
      unpack<W>(gains[step], gain);
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        squares += row[step][e] * row[step][e];
        row[step][e] *= gain[e];
      }
    }
  }
  return squares;
}

inline float sum_of_warp(float v) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(0xffffffffu, v, far);
  return v;
}

template <bool kWide, typename X, typename W, typename Rows>
void stream_ring(const Rows& weights, const X* x, const Epilogue& epilogue) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = warp / kSplit, slice = warp % kSplit;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int columns = static_cast<int>(smaller<int64_t>(kColumns, params.n - first));
  const int count = group < columns ? (columns - group + kGroups - 1) / kGroups : 0;
  const unsigned slots = shared_address(shared_memory) + warp * kStages * kSlot + lane * 16;
  const Ring<kWide, W, Rows> ring{weights, first + group, count, slice * 32 + lane};

  Waiting output(0, first + threadIdx.x, static_cast<int>(threadIdx.x) < columns);
  if constexpr (!kWeightsSettled) await_operands();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) ring.fill(i, slots + i * kSlot);
  if constexpr (kWide && kWeightsSettled && kAhead > 0) ring.fetch_ahead();
  uint4 gains[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int at = step * kLanes + ring.place;
    gains[step] = uint4{0, 0, 0, 0};
    if (!kNormed || at >= kLoads) continue;
    const W* norm = weights.norm() + at * kEach;
    gains[step] = kWide ? load_kept(norm) : gather_load(norm);
  }
  if constexpr (kBiasSettled) output.read_bias(epilogue);
  if constexpr (kWeightsSettled) await_operands();
  if constexpr (!kBiasSettled) output.read_bias(epilogue);

  float row[kSteps][kEach];
  const float squares = read_row<kWide, W>(x, gains, ring.place, row);
  output.read_residual(epilogue);

  __shared__ float parts[kSplit][kParts][kColumns], all_squares[kSplit];
  unsigned slot = slots;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    wait_copies<kStages - 1>();
    float sums[kParts][2] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float w[kEach];
        unpack<W>(load_shared(slot + (part * kSteps + step) * 512), w);
#pragma unroll
        for (int e = 0; e < kEach; ++e) sums[part][e % 2] += row[step][e] * w[e];
      }
    }
    ring.fill(i + kStages, slot);
    slot = slot + kSlot == slots + kStages * kSlot ? slots : slot + kSlot;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float sum = sum_of_warp(sums[part][0] + sums[part][1]);
      if (lane == 0) parts[slice][part][i * kGroups + group] = sum;
    }
  }
  if (kNormed && group == 0) {
    const float sum = sum_of_warp(squares);
    if (lane == 0) all_squares[slice] = sum;
  }
  __syncthreads();
  if (!output.exists) return;
  float v[kParts] = {}, total = 0.0f;
#pragma unroll
  for (int s = 0; s < kSplit; ++s) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) v[part] += parts[s][part][threadIdx.x];
    if constexpr (kNormed) total += all_squares[s];
  }
  if constexpr (kNormed) {
    const float scale = scalar::rsqrt(total / static_cast<float>(params.k) + kNormEps);
#pragma unroll
    for (int part = 0; part < kParts; ++part) v[part] *= scale;
  }
  output.store(epilogue, v);
}

}  // namespace npusim
