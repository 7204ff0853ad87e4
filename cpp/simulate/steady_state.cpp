#include "cpp/simulate/steady_state.h"

namespace npusim::simulate {
namespace {

constexpr int64_t kTries = 512;  // moments of one run of a loop that are compared

}  // namespace

void SteadyState::forget() {
  before_.reset();
  seen_ = 0;
  next_ = 1;
}

bool SteadyState::wants(int64_t step, int64_t oldest, int64_t newest) {
  if (step % level_.stride) return false;
  if (!tiles_.alike(level_, oldest, newest)) {
    forget();
    return false;
  }
  return seen_ < kTries;
}

int64_t SteadyState::repeats(const Moment& now, int64_t newest) {
  if (before_ && !tiles_.alike(level_, before_->oldest, newest)) forget();  // of another run
  if (before_ && before_->state == now.state) {
    const int64_t strides = (now.step - before_->step) / level_.stride;
    return tiles_.room(level_, before_->oldest, newest) / strides;
  }
  if (++seen_ >= next_) {
    before_ = now;
    next_ *= 2;
  }
  return 0;
}

}  // namespace npusim::simulate
