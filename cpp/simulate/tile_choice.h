// The choice of a command's tiles: those with which the walk is the shortest, of all that fit into
// a memory and are tried.
//
// Tried are both orders of the loops over m and n, either operand kept whole, and for m and n all
// multiples of their granule, or, where those are more than `kEvery`, the granule times powers of
// two; the depth of a tile is the greatest that fits, since k is the innermost loop and shorter
// tiles only move more. Of equally fast ones that with the fewest bytes is chosen, and of those the
// one with the fewest tiles.
//
// What is tried depends on sizes of memories and on no rate, and no walk is longer for a rate that
// is higher (walk.h): so neither is the shortest one. Walks are spared where a bound says that they
// are not shorter than one that was walked, and given up where they have become longer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpp/simulate/dataflow.h"
#include "cpp/simulate/walk.h"

namespace npusim::simulate {

constexpr int64_t kEvery = 8;     // multiples of a granule, up to which all are tried
constexpr int64_t kSumBytes = 4;  // of a sum while it is added up

using Extents = std::array<int64_t, 4>;  // along b, m, n, k

// What of a machine its choice depends on.
struct TiledMachine {
  Machine machine;
  int64_t room;  // bytes of the nearest memory that are free
  bool double_buffer;
  int64_t sums_room;  // bytes of the sums' memory
  Extents granule;
};

// An operand: the axes that it has (bits of b, m, n, k), and the one along which its elements lie
// side by side. `here`: it is in the memory all the time; `inside`: it never leaves the command.
struct TiledOperand {
  int axes, inner;
  int64_t bytes, halo_bytes;
  bool write, here, inside;
};

struct TiledWork {
  bool products;    // a product or a convolution, whose loops over m and n have two orders
  bool on_array;    // else the vector unit, or nothing but copies
  bool walked;      // else by the host: its estimate alone counts
  bool whole_rows;  // n is not cut
  Extents sizes;
  int64_t taps;
  bool depthwise;
  int64_t element_bytes;
  double vector_rate;
  std::vector<VectorPass> vector;
  std::vector<TiledOperand> operands;
};

struct Tiling {
  Extents tile{};
  bool n_before_m = false;  // the order of the loops; k is always the innermost
  int resident = -1;        // the operand that is kept whole
};

// An operand's tile, how many of them are moved, and all their bytes.
struct TiledTraffic {
  int64_t tile_bytes, row_bytes;
  int64_t transfers, moved_bytes;
};

struct Assessed {
  double array_cycles, vector_cycles;  // of a core, the work being shared evenly
  double cycles;                       // of everything, about
  double least_cycles;                 // that no walk is below
  int64_t moved_bytes, tiles;
  int64_t bytes;  // of the memory
  std::vector<TiledTraffic> operands;
};

// What a tiling takes, whether it fits or not.
// Throws Error(kInput) for sizes, tiles or machines that mean nothing.
Assessed assess(const TiledMachine& machine, const TiledWork& work, const Tiling& tiling);

// The best tiling, or none if no tile fits. Throws as `assess`.
std::optional<Tiling> choose_tiling(const TiledMachine& machine, const TiledWork& work);

}  // namespace npusim::simulate
