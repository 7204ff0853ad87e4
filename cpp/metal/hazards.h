// Which commands of a concurrent encoder have to wait for those before them: whatever touches bytes
// that one of them writes, or writes bytes that one of them touches.
#pragma once

#include <cstddef>
#include <vector>

namespace npusim::metal {

// Bytes that a command may touch, by where the host sees them: what lies twice on the device is one
// place there.
struct Touched {
  const std::byte* first;
  const std::byte* last;  // behind them
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
