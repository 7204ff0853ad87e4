#include "cpp/simulate/attribution.h"

namespace npusim::simulate {

void Attribution::mark(int cause, int64_t from, int64_t to) {
  if (from >= to) return;
  begin(cause, from);
  end(cause, to);
}

void Attribution::give(int64_t until) {
  size_t cause = 0;
  while (cause < kDependency && active_[cause] == 0) ++cause;
  causes_[cause] += until - since_;
  since_ = until;
}

void Attribution::settle(int64_t time) {
  while (!waiting_.empty() && std::get<0>(waiting_.top()) <= time) {
    const auto [at, cause, change] = waiting_.top();
    waiting_.pop();
    if (at > since_) give(at);
    active_[static_cast<size_t>(cause)] += change;
  }
  if (time > since_) give(time);
}

void Attribution::describe(int64_t now, std::vector<int64_t>& state) const {
  state.push_back(since_ - now);
  state.insert(state.end(), active_.begin(), active_.end());
  auto waiting = waiting_;  // in order, as it is taken from
  for (; !waiting.empty(); waiting.pop()) {
    const auto [at, cause, change] = waiting.top();
    state.insert(state.end(), {at - now, cause, change});
  }
}

}  // namespace npusim::simulate
