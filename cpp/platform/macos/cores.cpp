#include "cpp/platform/cores.h"

#include <sys/sysctl.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace npusim::platform {
namespace {

// Work is cut into equal parts, which the slowest worker ends last: where a processor has cores of
// several kinds (Apple's, level 0 first), the fast ones alone.
size_t physical_cores() {
  for (const char* name : {"hw.perflevel0.physicalcpu", "hw.physicalcpu"}) {
    int count = 0;
    size_t size = sizeof count;
    if (sysctlbyname(name, &count, &size, nullptr, 0) == 0 && count > 0) {
      return static_cast<size_t>(count);
    }
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> cores(physical_cores());
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

void pin_this_thread(int) noexcept {}

bool can_pin_threads() noexcept {
  return false;
}

}  // namespace npusim::platform
