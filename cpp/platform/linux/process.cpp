#include "cpp/platform/process.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace npusim::platform {

bool may_be_main_thread() noexcept {
  return ::syscall(SYS_gettid) == ::getpid();
}

int64_t coarse_milliseconds() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace npusim::platform
