// Keys and values of tma_attention.h: a multistage pipeline of tiles in shared memory, which the
// producer warp fills by TMA. Only for sm_90a.
//
// A tile in shared memory is panels of 64 columns, whose rows are lines of 128 bytes with 128-byte
// swizzle, as wgmma reads them.
#pragma once
#include "kernels/cuda/attention/rows.h"
#include "kernels/cuda/common/tma.h"

namespace npusim {

constexpr int kGroups = NPUSIM_TMA_ROWS / 64;  // of four warps each, which multiply 64 rows
constexpr int kTileKeys = NPUSIM_TILE_KEYS, kStages = NPUSIM_PIPELINE_STAGES;
constexpr int kConsumers = kGroups * 128;     // threads
constexpr int kPanelBytes = kTileKeys * 128;  // of a tile of keys or values
constexpr int kQueryPanelBytes = 64 * 128;    // of the queries of a group
constexpr int kDPanels = (kD + 63) / 64, kVPanels = (kV + 63) / 64;
constexpr int kKeyBytes = kDPanels * kPanelBytes, kValueBytes = kVPanels * kPanelBytes;
constexpr int kGroupBytes = larger(kDPanels, kVPanels) * kQueryPanelBytes;  // queries, then y
static_assert(kD % 8 == 0 && kV % 8 == 0 && kTileKeys % 16 == 0);
// Heads of a chunk less than whole steps of wgmma: what lies in its place belongs to other heads.
constexpr bool kHasRest = kD % 16 != 0;

inline unsigned at_panel_chunk(int panel_bytes, int row, int chunk) {
  return chunk / 8 * panel_bytes + row * 128 + ((chunk % 8 ^ (row & 7)) << 4);
}

// The row and the column of a matrix's map where a head begins, from its strides in elements.
struct HeadPlace {
  int row, column;

  HeadPlace(const int64_t (&strides)[3], const Head& head)
      : row(static_cast<int>(head.batch * (strides[0] / strides[2]) +
                             head.kv_head * (strides[1] / strides[2]))),
        column(static_cast<int>(head.batch * (strides[0] % strides[2]) +
                                head.kv_head * (strides[1] % strides[2]))) {}
};

struct KeyPipeline {
  static constexpr int kBarriersAt = kGroups * kGroupBytes + kStages * (kKeyBytes + kValueBytes);
  unsigned base;

  unsigned queries(int group) const { return base + group * kGroupBytes; }
  unsigned keys(int tile) const {
    return base + kGroups * kGroupBytes + tile % kStages * (kKeyBytes + kValueBytes);
  }
  unsigned values(int tile) const { return keys(tile) + kKeyBytes; }

  // The mbarriers of a stage: its keys have arrived, or are read by all; likewise its values.
  unsigned full_keys(int tile) const { return base + kBarriersAt + tile % kStages * 32; }
  unsigned empty_keys(int tile) const { return full_keys(tile) + 8; }
  unsigned full_values(int tile) const { return full_keys(tile) + 16; }
  unsigned empty_values(int tile) const { return full_keys(tile) + 24; }
  unsigned last_values() const { return base + kBarriersAt + kStages * 32; }
  static unsigned phase(int tile) { return tile / kStages & 1; }

  void make_barriers() const {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(full_keys(i), 1);
      init_barrier(empty_keys(i), kConsumers / 32);
      init_barrier(full_values(i), 1);
      init_barrier(empty_values(i), kConsumers / 32);
    }
    init_barrier(last_values(), 1);
    fence_barrier_init();
  }
};

// Loads of one block's tiles, issued by the first lane of a warp.
struct KeyProducer {
  const KeyPipeline& pipeline;
  const TensorMap &key_map, &value_map;
  HeadPlace key_place, value_place;
  int first_key, keys, tiles;  // of the block

  static void wait_empty(unsigned barrier, int tile) {
    if (tile >= kStages) wait_barrier(barrier, KeyPipeline::phase(tile) ^ 1);
  }
  template <int kPanels>
  void load(const TensorMap& map, const HeadPlace& place, int tile, unsigned to,
            unsigned barrier) const {
    arrive_and_expect_bytes(barrier, kPanels * kPanelBytes);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      tma_load<false, false>(to + panel * kPanelBytes, &map, place.column + panel * 64,
                             place.row + first_key + tile * kTileKeys, barrier, 0, 0);
    }
  }
  void load_keys(int tile) const {
    wait_empty(pipeline.empty_keys(tile), tile);
    load<kDPanels>(key_map, key_place, tile, pipeline.keys(tile), pipeline.full_keys(tile));
  }
  void load_values(int tile) const {
    wait_empty(pipeline.empty_values(tile), tile);
    load<kVPanels>(value_map, value_place, tile, pipeline.values(tile), pipeline.full_values(tile));
  }
  // The last tile of values may have rows that are no keys of the block. Their weights are 0, and
  // they become 0 too: what lies there may be no number.
  void load_last_values() const {
    const int tile = tiles - 1, lane = static_cast<int>(threadIdx.x % 32);
    const int valid = keys - tile * kTileKeys;
    if (valid >= kTileKeys) {
      if (lane == 0) load_values(tile);
      return;
    }
    const unsigned to = pipeline.values(tile);
    if (lane == 0) {
      wait_empty(pipeline.empty_values(tile), tile);
      load<kVPanels>(value_map, value_place, tile, to, pipeline.last_values());
    }
    __syncwarp();
    wait_barrier(pipeline.last_values(), 0);
#pragma unroll
    for (int panel = 0; panel < kVPanels; ++panel) {
      for (int at = valid * 128 + lane * 16; at < kPanelBytes; at += 32 * 16)
        store_shared(to + panel * kPanelBytes + at, uint4{0, 0, 0, 0});
    }
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) arrive(pipeline.full_values(tile));
  }
  // All tiles, values one tile after keys.
  void run() const {
    if (threadIdx.x % 32 == 0) {
      prefetch_tensor_map(&key_map);
      prefetch_tensor_map(&value_map);
      fence_proxy_async_global();
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        load_keys(tile);
        if (tile > 0) load_values(tile - 1);
      }
    }
    __syncwarp();
    load_last_values();
  }
};

}  // namespace npusim
