// Which columns of y a tile of swap_ab.h has, in strips beside each other in shared memory, and
// what their sums become: y, as row_epilogue.h has it, or turned and appended (rope_epilogue.h).
#pragma once
#include "kernels/cuda/matmul/row_epilogue.h"
#ifdef NPUSIM_ROPE_JOINED
#include "kernels/cuda/matmul/rope_epilogue.h"
#endif

namespace npusim::swap_ab {

// Whether columns are queries, keys and values that are turned and appended by the block.
#ifdef NPUSIM_ROPE_JOINED
constexpr bool kRotates = true;
#else
constexpr bool kRotates = false;
#endif
// The columns of both parts of W, or two halves of a head.
constexpr int kStrips = kRotates ? 2 : kParts;

// Eight columns, or of gated products those of both parts, that are stored as y.
struct PlainColumns {
  using Read = uint4;
  static constexpr bool kPlacesUnwritten = true;
  int column;

  PlainColumns(void* const*, int column) : column(column) {}
  static bool are_aligned(void* const*) { return true; }
  // A row's residual.
  Read read(const RowEpilogue& epilogue, int row) const { return epilogue.residual(row, column); }
  template <int kThreads, int kMostRows, typename Sync>
  void find_places(int, int, int*, int*, Sync) const {}
  void report(int, int, const int*, int, int) const {}

  // Stores a row's; returns the sum of their squares, for a norm after y.
  float store(const RowEpilogue& epilogue, int row, const int*, const Read& residual,
              const float (&bias)[kStrips][8], const uint4& norm,
              const float (&sums)[kStrips][8]) const {
    if constexpr (kParts == 1) {
      return epilogue.store(row, column, residual, bias[0], norm, sums[0]);
    } else {
      epilogue.store_gated(row, column, sums[0], sums[1], bias[0], bias[1]);
      return 0.0f;
    }
  }
};

#ifdef NPUSIM_ROPE_JOINED
using Columns = RopeColumns;
constexpr int kSecondStrip = RopeOperands::kHalf;
constexpr int column_of_tile(int tile, int outputs) {
  const int tiles = kSecondStrip / outputs;  // of a head
  return tile / tiles * RopeOperands::kD + tile % tiles * outputs;
}
#else
using Columns = PlainColumns;
constexpr int kSecondStrip = static_cast<int>(params.n);
constexpr int column_of_tile(int tile, int outputs) {
  return tile * outputs;
}
#endif

}  // namespace npusim::swap_ab
