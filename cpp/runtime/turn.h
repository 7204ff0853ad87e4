// A turn at something that one thread at a time may use.
#pragma once

#include <atomic>

#include "cpp/runtime/error.h"

namespace npusim {

// Marks its owner as in use for as long as it lives. Throws Error(kBusy) instead of waiting.
class Turn {
 public:
  Turn(std::atomic<bool>& taken, const char* refusal) : taken_(taken) {
    if (taken_.exchange(true, std::memory_order_acquire)) throw Error(ErrorCode::kBusy, refusal);
  }
  ~Turn() { taken_.store(false, std::memory_order_release); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& taken_;
};

}  // namespace npusim
