// A turn at something that one thread at a time may use.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "cpp/platform/forks.h"
#include "cpp/runtime/error.h"

namespace npusim {

// Who has the turn: 0 is nobody, else fork_depth() + 1 of the process.
using TurnFlag = std::atomic<uint32_t>;

// Marks its owner as in use for as long as it lives. Throws Error(kBusy) instead of waiting; also
// in a process that was forked while a thread of its parent had the turn, as nobody will ever
// finish what that thread had begun.
class Turn {
 public:
  Turn(TurnFlag& taken, const char* refusal) : taken_(taken) {
    const uint32_t mine = fork_depth() + 1;
    uint32_t holder = 0;
    if (taken_.compare_exchange_strong(holder, mine, std::memory_order_acquire)) return;
    if (holder == mine) throw Error(ErrorCode::kBusy, refusal);
    throw Error(ErrorCode::kBusy,
                "another thread was in the middle of using this when the process forked, and does "
                "not exist in the child; make a new one here");
  }
  ~Turn() { taken_.store(0, std::memory_order_release); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  TurnFlag& taken_;
};

}  // namespace npusim
