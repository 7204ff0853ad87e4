// What units do when, for pictures: neighbours become one interval where there are too many.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpp/simulate/walk.h"

namespace npusim::simulate {

class Timeline {
 public:
  // `most`: intervals of all lanes together; 0: none, events are only counted.
  Timeline(int64_t cores, int64_t lanes, size_t most);
  void add(int lane, int core, int64_t start, int64_t end);
  // Events of the ticks from `start` on are repeated `times` times more, `period` ticks each.
  void repeat(const std::vector<Interval>& before, int64_t start, int64_t period, int64_t times);
  // Counts and busy ticks of all lanes so far.
  const std::vector<Interval>& totals() const { return totals_; }
  int64_t events() const;
  std::vector<Interval> intervals() const;

 private:
  struct Lane {
    std::vector<Interval> shown;
    int64_t group = 1, open = 0;  // events that one interval tells; of the last one so far
  };
  void append(size_t index, const Interval& one);

  int64_t lanes_;
  size_t room_;  // intervals of a lane
  std::vector<Lane> shown_;
  std::vector<Interval> totals_;
};

}  // namespace npusim::simulate
