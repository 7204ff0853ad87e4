// What a backend need not implement itself.
#include "cpp/runtime/device.h"

#include <chrono>

namespace npusim {

void CommandList::submit_timed(std::span<double> seconds) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point before = Clock::now();
  submit_observed([&](size_t index) {
    seconds[index] = std::chrono::duration<double>(Clock::now() - before).count();
    before = Clock::now();
  });
}

}  // namespace npusim
