// What the operating system says of this process and its threads.
#pragma once

#include <cstdint>

namespace npusim::platform {

// Whether the calling thread is the one that the process began with; true where the system cannot
// tell.
bool may_be_main_thread() noexcept;

// A clock that never goes back, read as cheaply as the system can: it may stand for some
// milliseconds.
int64_t coarse_milliseconds() noexcept;

}  // namespace npusim::platform
