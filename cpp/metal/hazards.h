// Which commands of a concurrent encoder have to wait for those before them: whatever touches bytes
// that one of them writes, or writes bytes that one of them touches.
#pragma once

#include <cstdint>
#include <vector>

namespace npusim::metal {

// Bytes that a command may touch. Those that the host sees are known by where it does: what lies
// twice on the device is one place there. Private memory lies once.
struct Touched {
  uint64_t storage;       // of private memory its serial; else 0
  uintptr_t first, last;  // there; `last` is behind them
  bool written;
};

class Hazards {
 public:
  // Takes a command's effects; tells whether a barrier has to stand before it.
  bool needs_barrier(const std::vector<Touched>& effects);

 private:
  std::vector<Touched> open_;  // since the last barrier
};

}  // namespace npusim::metal
