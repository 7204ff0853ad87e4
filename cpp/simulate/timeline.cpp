#include "cpp/simulate/timeline.h"

#include <algorithm>

namespace npusim::simulate {
namespace {

constexpr size_t kLogged = 8192;  // events of a period that can be told one by one

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
  const Interval one{lane, core, start, end, end - start, 1};
  totals_[index_of(one)].busy += one.busy;
  ++totals_[index_of(one)].count;
  if (!room_) return;
  append(one);
  if (log_.size() == kLogged) {
    log_.erase(log_.begin(), log_.begin() + kLogged / 2);
    dropped_ += kLogged / 2;
  }
  log_.push_back(one);
}

void Timeline::append(const Interval& one) {
  Lane& lane = shown_[index_of(one)];
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

void Timeline::repeat(const Mark& since, int64_t now, int64_t period, int64_t times) {
  std::vector<Interval> events;
  const bool known = since.logged >= dropped_ && since.logged > incomplete_;
  if (known) events.assign(log_.begin() + (since.logged - dropped_), log_.end());
  for (size_t i = 0; i < totals_.size(); ++i) {
    Interval more = totals_[i];
    more.busy = (more.busy - since.totals[i].busy) * times;
    more.count = (more.count - since.totals[i].count) * times;
    totals_[i].busy += more.busy;
    totals_[i].count += more.count;
    more.start = now;
    more.end = now + period * times;
    if (room_ && !known && more.count) append(more);
  }
  if (room_ && known) repeat_each(events, period, times);
  incomplete_ = dropped_ + static_cast<int64_t>(log_.size());
}

// Adds events again: period by period, or, where those are more than are shown, some periods as
// one.
void Timeline::repeat_each(const std::vector<Interval>& events, int64_t period, int64_t times) {
  const int64_t rounds = std::min<int64_t>(times, 2 * static_cast<int64_t>(room_));
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t first = times * round / rounds, last = times * (round + 1) / rounds - 1;
    if (first == last) {
      for (Interval one : events) {
        one.start += (first + 1) * period;
        one.end += (first + 1) * period;
        append(one);
      }
      continue;
    }
    std::vector<Interval> whole(totals_.size());
    for (const Interval& one : events) {
      Interval& all = whole[index_of(one)];
      if (!all.count) all = {one.lane, one.core, one.start + (first + 1) * period, 0, 0, 0};
      all.end = std::max(all.end, one.end + (last + 1) * period);
      all.busy += one.busy * (last - first + 1);
      all.count += one.count * (last - first + 1);
    }
    for (const Interval& all : whole) {
      if (all.count) append(all);
    }
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
