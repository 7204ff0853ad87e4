// How an engine may be set up, and what comes of that for its runner.
#pragma once

#include <cstdint>

#include "cpp/serve/scheduler.h"
#include "cpp/serve/step_runner.h"

namespace npusim::serve {

struct BatchOptions {
  // At most; the runner may take fewer. 0: as many as it takes.
  int64_t max_requests = 0;  // that run at a time
  int64_t max_step_tokens = 0;
  bool prefix_cache = true;
  double step_seconds = 0;  // how long prompts may make a step, about; 0: no bound
  int64_t patience = 256;   // how many requests of smaller priority may overtake one
};

// These throw Error(kLimit) for what is out of range.
RunnerFacts checked(const RunnerFacts& facts);
StepLimits limits_of(const RunnerFacts& facts, const BatchOptions& options);
double checked_seconds(double seconds);
int64_t checked_patience(int64_t patience);

}  // namespace npusim::serve
