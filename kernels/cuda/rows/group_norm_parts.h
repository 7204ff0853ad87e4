// Group norm of what lies channels last, in two launches: blocks take the moments of their part of
// the positions of some whole groups, then blocks of the next launch put together those of all
// parts and write y. A thread has a pack of neighbouring channels of every NPUSIM_ROWS-th position.
#pragma once
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/scalar_ops.h"
#include "kernels/cuda/rows/norm_operands.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;
using Y = Storage<params.y_dtype>;

constexpr int kPack = NPUSIM_PACK, kPacks = NPUSIM_PACKS, kRows = NPUSIM_ROWS;
constexpr int kTileChannels = kPack * kPacks;
constexpr int kChannels = static_cast<int>(params.channels / params.groups);  // of a group
constexpr int kGroups = kTileChannels / kChannels;                            // of a tile
constexpr int kTiles = static_cast<int>(params.channels / kTileChannels);
constexpr int kParts = NPUSIM_PARTS, kWriters = NPUSIM_WRITERS;
constexpr int64_t kPartPositions = (params.spatial + kParts - 1) / kParts;
constexpr int64_t kWriterPositions = (params.spatial + kWriters - 1) / kWriters;
constexpr int kUnroll = 4;  // positions that a thread loads at once

constexpr int lanes_of_group() {
  int lanes = 32;
  while (lanes > 1 && lanes * kGroups > NPUSIM_BLOCK) lanes /= 2;
  return lanes;
}
constexpr int kLanes = lanes_of_group();

// Of so many numbers as whoever reads them knows: their mean, and the squares of distances from it.
struct Moments {
  float mean, squares;
};

// Which part of which tile a block has, and which of its channels and positions a thread.
struct Place {
  int64_t batch, first, end;  // item, positions
  int part, tile, pack, row;

  Place(int parts, int64_t each) {
    unsigned block = blockIdx.x;
    part = static_cast<int>(block % parts);
    block /= parts;
    tile = static_cast<int>(block % kTiles);
    batch = block / kTiles;
    first = part * each;
    end = first + each < params.spatial ? first + each : params.spatial;
    pack = static_cast<int>(threadIdx.x) % kPacks;
    row = static_cast<int>(threadIdx.x) / kPacks;
  }
  bool exists() const { return row < kRows; }
  int64_t channel() const { return tile * kTileChannels + pack * kPack; }
};

// What a part that begins at the first position has, and the last one has less of.
inline float positions_of(int part) {
  const int64_t left = params.spatial - part * kPartPositions;
  return static_cast<float>(left < kPartPositions ? left : kPartPositions);
}

inline void read(const X* x, bool packed, float (&numbers)[kPack]) {
  Pack<X, kPack> pack;
  if (packed) {
    pack = load_pack<kPack>(x);
  } else {
#pragma unroll
    for (int e = 0; e < kPack; ++e) pack.at[e] = x[e];
  }
#pragma unroll
  for (int e = 0; e < kPack; ++e) numbers[e] = decode<float>(pack.at[e]);
}

// Calls f(numbers of so many positions, how many, the first position) until a thread has had all.
template <typename F>
void for_positions(const X* x, const Place& at, F f) {
  const bool packed = is_packed<kPack>(x);
  for (int64_t p = at.first + at.row; p < at.end; p += kUnroll * kRows) {
    float numbers[kUnroll][kPack] = {};
    int count = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (p + u * kRows >= at.end) continue;
      read(x + (p + u * kRows) * params.x_strides[2], packed, numbers[u]);
      count = u + 1;
    }
    f(numbers, count, p);
  }
}

// Those of a pack's channels, of all positions that a thread has.
struct PackMoments {
  float mean[kPack] = {}, squares[kPack] = {};
  int count = 0;

  void add(const float (&numbers)[kUnroll][kPack], int more) {
    const float all = static_cast<float>(count + more), part = 1.0f / static_cast<float>(more);
    const float share = static_cast<float>(more) / all;
    const float weight = static_cast<float>(count) * share;
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      float sum = 0.0f, around = 0.0f;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) sum += numbers[u][e];  // zeros where there are none
      const float center = sum * part;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const float distance = u < more ? numbers[u][e] - center : 0.0f;
        around += distance * distance;
      }
      const float apart = center - mean[e];
      mean[e] += apart * share;
      squares[e] += around + apart * apart * weight;
    }
    count += more;
  }
};

// Those of `kCount` sets of numbers together, by the lanes that share a group; count(i), at(i).
template <typename C, typename A>
Moments together(int count, float all, C of, A at) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float sum = 0.0f, squares = 0.0f;
  for (int i = lane; i < count; i += kLanes) sum += of(i) * at(i).mean;
  const float mean = fold_warp<kLanes>(sum, Plus{}) / all;
  for (int i = lane; i < count; i += kLanes) {
    const Moments part = at(i);
    const float apart = part.mean - mean;
    if (of(i) > 0.0f) squares += part.squares + of(i) * apart * apart;
  }
  return {mean, fold_warp<kLanes>(squares, Plus{})};
}

// Calls f(group of the tile, whether there is such a one) for all of them, kLanes threads each.
template <typename F>
void for_groups(F f) {
  constexpr int kAtOnce = NPUSIM_BLOCK / kLanes;
#pragma unroll 1
  for (int first = 0; first < kGroups; first += kAtOnce) {
    const int group = first + static_cast<int>(threadIdx.x) / kLanes;
    f(group < kGroups ? group : kGroups - 1, group < kGroups && threadIdx.x % kLanes == 0);
  }
}

inline void take_moments(const void* x_memory, void* scratch) {
  __shared__ Moments rows[kRows][kTileChannels];
  const Place at(kParts, kPartPositions);
  if (at.exists()) {
    const X* x = static_cast<const X*>(x_memory) + at.batch * params.x_strides[0] + at.channel();
    PackMoments found;
    for_positions(x, at, [&](const float (&numbers)[kUnroll][kPack], int count, int64_t) {
      found.add(numbers, count);
    });
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      rows[at.row][at.pack * kPack + e] = {found.mean[e], found.squares[e]};
    }
  }
  __syncthreads();
  const int positions = static_cast<int>(at.end - at.first);
  for_groups([&](int group, bool writes) {
    const Moments all = together(
        kRows * kChannels, static_cast<float>(positions) * kChannels,
        [&](int i) {
          const int left = positions - i / kChannels;
          return left <= 0 ? 0.0f : static_cast<float>((left + kRows - 1) / kRows);
        },
        [&](int i) { return rows[i / kChannels][group * kChannels + i % kChannels]; });
    const int64_t row = at.batch * params.groups + at.tile * kGroups + group;
    if (writes) static_cast<Moments*>(scratch)[row * kParts + at.part] = all;
  });
}

inline void write(const void* x_memory, const void* weight, const void* bias, void* y_memory,
                  const void* scratch) {
  __shared__ Moments groups[kGroups];  // the mean, and what distances from it are multiplied by
  const Place at(kWriters, kWriterPositions);
  for_groups([&](int group, bool writes) {
    const int64_t row = at.batch * params.groups + at.tile * kGroups + group;
    const Moments* parts = static_cast<const Moments*>(scratch) + row * kParts;
    constexpr float kAll = static_cast<float>(kChannels * params.spatial);
    const Moments all = together(
        kParts, kAll, [&](int i) { return positions_of(i) * kChannels; },
        [&](int i) { return parts[i]; });
    if (writes) {
      groups[group] = {all.mean,
                       scalar::rsqrt(all.squares / kAll + static_cast<float>(params.eps))};
    }
  });
  __syncthreads();
  if (!at.exists()) return;
  const int64_t channel = at.channel();
  float center[kPack], scale[kPack], shift[kPack];
#pragma unroll
  for (int e = 0; e < kPack; ++e) {
    const Moments& group = groups[(at.pack * kPack + e) / kChannels];
    center[e] = group.mean;
    scale[e] = group.squares;
    shift[e] = 0.0f;
    if constexpr (params.has_weight)
      scale[e] *= decode<float>(static_cast<const W*>(weight)[channel + e]);
    if constexpr (params.has_bias)
      shift[e] = decode<float>(static_cast<const W*>(bias)[channel + e]);
  }
  const X* x = static_cast<const X*>(x_memory) + at.batch * params.x_strides[0] + channel;
  Y* y = static_cast<Y*>(y_memory) + at.batch * params.y_strides[0] + channel;
  for_positions(x, at, [&](const float (&numbers)[kUnroll][kPack], int count, int64_t p) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      float results[kPack];
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const float v = (numbers[u][e] - center[e]) * scale[e] + shift[e];
        results[e] = scalar::activate<params.act>(v);
      }
      write_pack<kPack>(y + (p + u * kRows) * params.y_strides[2], results);
    }
  });
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(NPUSIM_TENSORS, void* scratch) {
  npusim::take_moments(x, scratch);
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_write(NPUSIM_TENSORS, void* scratch) {
  npusim::write(x, NPUSIM_VECTORS_GIVEN, y, scratch);
}
