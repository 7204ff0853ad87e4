#include "cpp/simulate/timeline.h"

#include <algorithm>

namespace npusim::simulate {
namespace {

void join(Interval& one, const Interval& next) {
  one.end = std::max(one.end, next.end);
  one.busy += next.busy;
  one.count += next.count;
}

}  // namespace

Timeline::Timeline(int64_t cores, int64_t lanes, size_t most)
    : lanes_(lanes), shown_(static_cast<size_t>(cores * lanes)), totals_(shown_.size()) {
  room_ = most ? std::max<size_t>(2, most / shown_.size()) : 0;
  for (size_t i = 0; i < totals_.size(); ++i) {
    totals_[i].lane = static_cast<int>(i) % static_cast<int>(lanes);
    totals_[i].core = static_cast<int>(i) / static_cast<int>(lanes);
  }
}

void Timeline::add(int lane, int core, int64_t start, int64_t end) {
  if (start >= end) return;
  const size_t index = static_cast<size_t>(core * lanes_ + lane);
  totals_[index].busy += end - start;
  ++totals_[index].count;
  append(index, {lane, core, start, end, end - start, 1});
}

void Timeline::append(size_t index, const Interval& one) {
  if (!room_) return;
  Lane& lane = shown_[index];
  if (lane.open > 0 && lane.open < lane.group) {
    join(lane.shown.back(), one);
    ++lane.open;
    return;
  }
  if (lane.shown.size() >= room_) {
    for (size_t i = 0; i < lane.shown.size(); i += 2) {
      lane.shown[i / 2] = lane.shown[i];
      if (i + 1 < lane.shown.size()) join(lane.shown[i / 2], lane.shown[i + 1]);
    }
    lane.shown.resize((lane.shown.size() + 1) / 2);
    lane.group *= 2;
  }
  lane.shown.push_back(one);
  lane.open = 1;
}

void Timeline::repeat(const std::vector<Interval>& before, int64_t start, int64_t period,
                      int64_t times) {
  for (size_t i = 0; i < totals_.size(); ++i) {
    Interval more = totals_[i];
    more.busy = (more.busy - before[i].busy) * times;
    more.count = (more.count - before[i].count) * times;
    totals_[i].busy += more.busy;
    totals_[i].count += more.count;
    more.start = start;
    more.end = start + period * times;
    if (more.count) append(i, more);
  }
}

int64_t Timeline::events() const {
  int64_t out = 0;
  for (const Interval& one : totals_) out += one.count;
  return out;
}

std::vector<Interval> Timeline::intervals() const {
  std::vector<Interval> out;
  for (const Lane& lane : shown_) out.insert(out.end(), lane.shown.begin(), lane.shown.end());
  return out;
}

}  // namespace npusim::simulate
