// Processor groups (machines of more than 64 hardware threads) are not asked for: the process runs
// in one of them, and so do its workers.
#include "cpp/platform/cores.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "cpp/platform/windows/windows_headers.h"

namespace npusim::platform {
namespace {

// The lowest-numbered allowed hardware thread of each core; empty when the system does not tell.
std::vector<int> allowed_cores() {
  DWORD_PTR allowed = 0, all = 0;
  DWORD bytes = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &allowed, &all) == 0) return {};
  GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> facts(bytes / sizeof facts[0]);
  if (GetLogicalProcessorInformation(facts.data(), &bytes) == 0) return {};
  std::vector<int> cores;
  for (const auto& fact : facts) {
    if (fact.Relationship != RelationProcessorCore) continue;
    const auto usable = static_cast<unsigned long long>(fact.ProcessorMask & allowed);
    if (usable != 0) cores.push_back(__builtin_ctzll(usable));
  }
  std::sort(cores.begin(), cores.end());
  return cores;
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> cores = allowed_cores();
  if (!cores.empty()) return cores;
  cores.resize(std::max(1u, std::thread::hardware_concurrency()));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

void pin_this_thread(int core) noexcept {
  SetThreadAffinityMask(GetCurrentThread(), DWORD_PTR{1} << core);
}

bool can_pin_threads() noexcept {
  return true;
}

}  // namespace npusim::platform
