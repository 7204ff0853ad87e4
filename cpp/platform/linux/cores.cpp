#include "cpp/platform/cores.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace npusim::platform {
namespace {

// The lowest-numbered hardware thread of the core that `cpu` is a thread of.
int first_sibling(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
  int first = cpu;
  return file >> first ? first : cpu;
}

// Cores' worth of time the control group grants, rounded up; `otherwise` without a quota.
size_t quota(size_t otherwise) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double granted = 0, period = 0;
  if (!(file >> granted >> period) || granted <= 0 || period <= 0) return otherwise;
  return std::max<size_t>(1, static_cast<size_t>(std::ceil(granted / period)));
}

std::vector<int> allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cores, seen;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const int core = first_sibling(cpu);
    if (std::find(seen.begin(), seen.end(), core) != seen.end()) continue;
    seen.push_back(core);
    cores.push_back(cpu);
  }
  cores.resize(std::min(cores.size(), quota(cores.size())));
  return cores;
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> cores = allowed_cores();
  if (cores.empty()) cores.push_back(0);
  return cores;
}

void pin_this_thread(int core) noexcept {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

bool can_pin_threads() noexcept {
  return true;
}

}  // namespace npusim::platform
