#include "cpp/platform/process.h"

#include <pthread.h>
#include <time.h>

namespace npusim::platform {

bool may_be_main_thread() noexcept {
  return pthread_main_np() != 0;
}

int64_t coarse_milliseconds() noexcept {
  return static_cast<int64_t>(clock_gettime_nsec_np(CLOCK_MONOTONIC_RAW_APPROX) / 1'000'000);
}

}  // namespace npusim::platform
