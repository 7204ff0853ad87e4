// Which processor cores this process may use, and keeping a thread on one of them.
#pragma once

#include <vector>

namespace npusim::platform {

// Cores the process is allowed to run on, one entry a physical core, in ascending order; fewer
// where a container's quota grants less time than that. At least one entry.
std::vector<int> usable_cores();

// Keeps the calling thread on a core; without effect where the system has no such call.
void pin_this_thread(int core) noexcept;

// Tells whether pin_this_thread works on this system.
bool can_pin_threads() noexcept;

}  // namespace npusim::platform
