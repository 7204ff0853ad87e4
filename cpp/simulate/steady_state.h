// Whether a walk repeats itself: its state before a tile, compared with an earlier one.
//
// A state is what all that follows depends on, relative to the present time and tile. Where it is
// equal to an earlier one, and the tiles from there on differ only in how far along a loop they
// are, the time between the two is a period. Earlier states are kept after R. P. Brent, "An
// improved Monte Carlo factorization algorithm", BIT 20, 1980: one at a time, at tiles whose
// number doubles.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cpp/simulate/tile_sequence.h"
#include "cpp/simulate/timeline.h"
#include "cpp/simulate/walk.h"

namespace npusim::simulate {

// What a walk has come to before a tile.
struct Moment {
  int64_t step, oldest;  // the tile, and the first one of which anything is still known
  int64_t time;
  std::vector<int64_t> state;
  std::vector<__int128> counts;  // of everything that adds up
  Timeline::Mark timeline;
};

class SteadyState {
 public:
  SteadyState(const TileSequence& tiles, const Level& level) : tiles_(tiles), level_(level) {}

  const Level& level() const { return level_; }
  // Whether a moment before tile `step` is worth comparing; `oldest` … `newest` are the tiles that
  // the walk knows.
  bool wants(int64_t step, int64_t oldest, int64_t newest);
  // Returns how often the time since `before()` may be counted again, or keeps `now` and returns 0.
  int64_t repeats(const Moment& now, int64_t newest);
  const Moment& before() const { return *before_; }
  void forget();

 private:
  const TileSequence& tiles_;
  Level level_;
  std::optional<Moment> before_;
  int64_t seen_ = 0, next_ = 1;
};

}  // namespace npusim::simulate
