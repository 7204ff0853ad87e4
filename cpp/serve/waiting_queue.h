// The requests that wait, in the order in which they are admitted: by priority, the smaller first,
// and those of one priority as they came. Whoever has been overtaken often enough is next, whatever
// its priority: so the wait of each is bounded by the work that came before it.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "cpp/serve/request.h"

namespace npusim::serve {

// By priority, and then by number, which grows with each request that comes.
struct Rank {
  int64_t priority = 0;
  RequestId request = 0;
  auto operator<=>(const Rank&) const = default;
};

class WaitingQueue {
 public:
  // `patience`: how many later ones may overtake a request.
  explicit WaitingQueue(int64_t patience) : patience_(patience) {}

  void add(Rank rank);
  // Does nothing for one that does not wait.
  void remove(Rank rank);
  // Removes one that is admitted. Returns whether it has waited for as many others as it may.
  bool admit(Rank rank);

  int64_t size() const noexcept { return static_cast<int64_t>(by_rank_.size()); }
  // Whether the one that came first has waited for too many: it then is the first.
  bool is_overdue() const;
  // All in order, as long as `visit` returns true.
  template <typename Visit>
  void walk(Visit visit) const {
    const bool overdue = is_overdue();
    const RequestId first = overdue ? by_age_.begin()->first : 0;
    if (overdue && !visit(first)) return;
    for (const Rank& rank : by_rank_) {
      if (overdue && rank.request == first) continue;
      if (!visit(rank.request)) return;
    }
  }

 private:
  int64_t patience_;
  std::set<Rank> by_rank_;
  std::map<RequestId, int64_t>
      by_age_;  // how many admissions each waits for, counted from the first
  int64_t admissions_ = 0;
};

}  // namespace npusim::serve
