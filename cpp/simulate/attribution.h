// Which cause an instant is due to: the first, in the order of Cause, that is at work then.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "cpp/simulate/walk.h"

namespace npusim::simulate {

class Attribution {
 public:
  // A cause is at work from `from` to `to`; neither is before what was settled.
  void mark(int cause, int64_t from, int64_t to);
  void begin(int cause, int64_t time) { waiting_.push({time, cause, 1}); }
  void end(int cause, int64_t time) { waiting_.push({time, cause, -1}); }
  // No mark begins or ends before `time` any more.
  void settle(int64_t time);
  const std::array<int64_t, kCauses>& causes() const { return causes_; }
  // Appends what is at work, and what is known of the time from `now` on, relative to it.
  void describe(int64_t now, std::vector<int64_t>& state) const;

 private:
  using Boundary = std::tuple<int64_t, int, int>;  // time, cause, change
  void give(int64_t until);

  std::priority_queue<Boundary, std::vector<Boundary>, std::greater<>> waiting_;
  std::array<int64_t, kCauses> active_{}, causes_{};
  int64_t since_ = 0;
};

}  // namespace npusim::simulate
