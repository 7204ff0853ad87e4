#include "cpp/serve/waiting_queue.h"

namespace npusim::serve {

void WaitingQueue::add(Rank rank) {
  // Those that wait already are admitted before it, or overtake nobody.
  by_age_.emplace(rank.request, admissions_ + size() + patience_);
  by_rank_.insert(rank);
}

void WaitingQueue::remove(Rank rank) {
  by_rank_.erase(rank);
  by_age_.erase(rank.request);
}

bool WaitingQueue::admit(Rank rank) {
  const bool is_late = admissions_ >= by_age_.at(rank.request);
  remove(rank);
  ++admissions_;
  return is_late;
}

bool WaitingQueue::is_overdue() const {
  return !by_age_.empty() && admissions_ >= by_age_.begin()->second;
}

}  // namespace npusim::serve
