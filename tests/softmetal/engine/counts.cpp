#include "engine/counts.h"

#include <array>
#include <atomic>
#include <cstring>

namespace softmetal {
namespace {

constexpr std::array<const char*, static_cast<int>(Count::kEnd)> kNames = {
    "dispatches", "indirect commands", "executions", "compiled pipelines", "found pipelines",
    "private buffers", "commits",
    // In the order of Order.
    "run forward", "run reverse", "run shuffle", "run eager", "run eager-reverse"};

std::array<std::atomic<long>, kNames.size()> counts;

}  // namespace

void count(Count what) {
  ++counts[static_cast<int>(what)];
}

void count_runs(Order order, long dispatches) {
  counts[static_cast<int>(Count::kRunForward) + static_cast<int>(order)] += dispatches;
}

long counted(const char* name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (std::strcmp(kNames[i], name) == 0) return counts[i];
  }
  return -1;
}

}  // namespace softmetal
