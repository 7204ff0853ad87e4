// What the software device has done since it was loaded, by name, for tests that ask how often.
#pragma once

#include "engine/settings.h"

namespace softmetal {

// Direct dispatches and indirect commands that were encoded, executions of the latter, pipelines
// that were compiled, and those that an archive had; buffers in private storage; command
// buffers that were committed; dispatches that were executed, by order.
enum class Count {
  kDispatches,
  kIndirectCommands,
  kExecutions,
  kCompiled,
  kFound,
  kPrivateBuffers,
  kCommits,
  kRunForward,
  kEnd = kRunForward + static_cast<int>(Order::kEagerReverse) + 1
};

void count(Count what);
void count_runs(Order order, long dispatches);
// So far; -1 for an unknown name.
long counted(const char* name);

}  // namespace softmetal
