// The tiles of a command in the order in which each core computes them: what each keeps its units
// busy for, and what is copied for it. Everything is a function of a tile's number, so that nobody
// has to keep tiles.
//
// Results (places along b, m and n) go to the cores in turn; the tiles along k, which are summed,
// follow one another on one core. A core's tile `t` is tile t % K of its result t / K.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpp/simulate/walk.h"

namespace npusim::simulate {

enum Axis { kB, kM, kN, kK };
using Place = std::array<int64_t, 4>;  // along each axis, in tiles

// What a tile keeps its units busy for (ticks), and bytes that the array streams.
struct TileTimes {
  int64_t compute = 0, bank = 0, vector = 0, sram_bytes = 0;
};

// A loop whose iterations look alike but for its first and last ones.
struct Level {
  int axis;
  int64_t results;  // of one iteration; 0: the loop along k, whose iteration is one tile
  int64_t stride;   // tiles of a core after which the same cores do the same work, further along
};

class TileSequence {
 public:
  // Throws Error(kInput) for sizes, tiles, loops or machines that mean nothing, and for more than
  // 2^24 tiles.
  TileSequence(const Machine& machine, const Work& work);

  int64_t steps(int core) const;
  int64_t tiles() const { return results_ * trips_[kK]; }
  int64_t sums() const { return trips_[kK]; }  // tiles of one result

  Place place(int core, int64_t step) const;
  const TileTimes& times(const Place& at) const { return times_[last_mask(at)]; }

  // Bits of the operands that are copied before a core's step, or written after it.
  uint64_t loads(int core, int64_t step) const;
  uint64_t stores(int core, int64_t step) const;
  // Elements of an operand's tile; bytes, rounded up.
  __int128 volume(const Place& at, size_t operand) const;
  int64_t bytes(const Place& at, size_t operand) const;
  // How often the copy of an operand's tile of so many rows is set up: rows are one dimension,
  // their number another, and items of a batch a third.
  int64_t setups(const Place& at, size_t operand, int64_t rows) const;
  // Bytes in all of an operand of which tiles with so many elements were moved.
  int64_t moved(size_t operand, __int128 elements) const;

  // Loops of many iterations, the innermost first.
  const std::vector<Level>& levels() const { return levels_; }
  // Whether steps `first` … `last` of every core are tiles of one run of a level, those before and
  // behind them too, and far enough from its ends: so that they differ only in how far along the
  // loop they are.
  bool alike(const Level& level, int64_t first, int64_t last) const;
  // How many of a level's strides may follow `last` with all steps still alike.
  int64_t room(const Level& level, int64_t first, int64_t last) const;

 private:
  void check() const;
  void find_levels();
  TileTimes times_of(const Place& extent) const;
  Place extent(const Place& at) const;
  size_t last_mask(const Place& at) const;
  bool same(const Place& a, const Place& b, int axes) const;
  bool met_before(int core, const Place& at, int axes) const;
  int64_t result_of(const Place& at) const;

  const Machine& machine_;
  const Work& work_;
  std::vector<int> loops_;  // but for k, the outermost first
  Place trips_{};
  std::array<int64_t, 4> radix_{};  // results from one place along an axis to the next
  int64_t results_ = 1;
  std::array<TileTimes, 16> times_;
  std::vector<__int128> once_;  // elements of an operand that one core would move
  std::vector<Level> levels_;
};

}  // namespace npusim::simulate
