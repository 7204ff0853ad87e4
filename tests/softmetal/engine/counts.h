// What the software device has done since it was loaded, by name, for tests that ask how often.
#pragma once

namespace softmetal {

// Direct dispatches and indirect commands that were encoded, executions of the latter, pipelines
// that were compiled, and those that an archive had; buffers in private storage.
enum class Count {
  kDispatches,
  kIndirectCommands,
  kExecutions,
  kCompiled,
  kFound,
  kPrivateBuffers,
  kEnd
};

void count(Count what);
// So far; -1 for an unknown name.
long counted(const char* name);

}  // namespace softmetal
