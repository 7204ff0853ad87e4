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
  // What was added by now: counts and busy ticks of all lanes, and a place in the list of events.
  struct Mark {
    std::vector<Interval> totals;
    int64_t logged = 0;
  };
  Mark mark() const { return {totals_, dropped_ + static_cast<int64_t>(log_.size())}; }
  // What was added since a mark is added `times` times more, each `period` ticks later; `now` is
  // the present time.
  void repeat(const Mark& since, int64_t now, int64_t period, int64_t times);
  int64_t events() const;
  std::vector<Interval> intervals() const;

 private:
  struct Lane {
    std::vector<Interval> shown;
    int64_t group = 1, open = 0;  // events that one interval tells; of the last one so far
  };
  size_t index_of(const Interval& one) const {
    return static_cast<size_t>(one.core * lanes_ + one.lane);
  }
  void append(const Interval& one);
  void repeat_each(const std::vector<Interval>& events, int64_t period, int64_t times);

  int64_t lanes_;
  size_t room_;  // intervals of a lane
  std::vector<Lane> shown_;
  std::vector<Interval> totals_;
  std::vector<Interval> log_;              // the last events, behind `dropped_` others
  int64_t dropped_ = 0, incomplete_ = -1;  // the place where some were repeated, not added
};

}  // namespace npusim::simulate
