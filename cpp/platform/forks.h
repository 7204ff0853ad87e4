// What becomes of locks and flags when the process forks: the child has a copy of them, and not the
// threads that would have let go of them.
#pragma once

#include <atomic>
#include <cstdint>

namespace npusim::platform {

// Counted up in the child of a fork before anything else runs there; nothing else changes it.
extern std::atomic<uint32_t> fork_count;

// How many forks lie between this process and the one that loaded the runtime. Costs a load.
inline uint32_t fork_depth() noexcept {
  return fork_count.load(std::memory_order_relaxed);
}

// A lock that a thread of the parent may hold when the process forks: the child takes it over.
// What it guards may then be half done; what cannot bear that says so itself (see Turn).
class ForkSafeMutex {
 public:
  void lock() noexcept {
    const uint32_t mine = fork_depth() + 1;
    for (uint32_t holder = 0;;) {
      if (holder_.compare_exchange_weak(holder, mine, std::memory_order_acquire)) return;
      if (holder == mine) holder_.wait(mine, std::memory_order_relaxed);
      if (holder == mine) holder = 0;
    }
  }
  void unlock() noexcept {
    holder_.store(0, std::memory_order_release);
    holder_.notify_one();
  }

 private:
  std::atomic<uint32_t> holder_{0};  // 0: free; else fork_depth() + 1 of the process
};

}  // namespace npusim::platform

namespace npusim {

using platform::fork_depth, platform::ForkSafeMutex;

}  // namespace npusim
