#include "cpp/serve/batch_options.h"

#include <algorithm>
#include <limits>
#include <string>

#include "cpp/runtime/error.h"

namespace npusim::serve {
namespace {

// Tokens of prompts that steps have whose time is bounded: few enough to take no longer than the
// rows of those that generate, and enough that prompts end.
constexpr int64_t kLeastPaced = 16;

// Prompts whose every score is wanted have so many in a step at most: the others wait for the host
// to make log-probabilities of them.
constexpr int64_t kMostScored = 32;

// What was asked for, as far as the runner takes it.
int64_t limit_of(const char* name, int64_t asked, int64_t runner) {
  if (asked >= 0) return asked == 0 ? runner : std::min(asked, runner);
  throw Error(ErrorCode::kLimit, std::string(name) + " is " + std::to_string(asked) +
                                     "; it must be 1 or more, or 0: as many as possible");
}

}  // namespace

RunnerFacts checked(const RunnerFacts& facts) {
  const bool is_sound = facts.vocab_size > 0 && facts.max_context > 0 && facts.page_tokens > 0 &&
                        facts.max_step_tokens > 0 && facts.max_requests > 0;
  if (!is_sound) throw Error(ErrorCode::kLimit, "A runner of steps without tokens or requests.");
  return facts;
}

StepLimits limits_of(const RunnerFacts& facts, const BatchOptions& options) {
  const int64_t tokens =
      limit_of("max_step_tokens", options.max_step_tokens, facts.max_step_tokens);
  const int64_t requests = limit_of("max_requests", options.max_requests, facts.max_requests);
  StepLimits limits{.page_tokens = facts.page_tokens,
                    .step_tokens = tokens,
                    .prompt_tokens = tokens,
                    .least_prompt_tokens = 1,
                    .requests = std::min(requests, tokens),
                    .entries = facts.max_requests,
                    .scored_tokens = kMostScored};
  const int64_t beside = tokens - limits.requests;  // whoever has a prompt generates nothing
  const int64_t least = options.step_seconds > 0 ? kLeastPaced : facts.page_tokens;
  limits.least_prompt_tokens = std::clamp<int64_t>(beside, 1, std::min(least, facts.page_tokens));
  return limits;
}

double checked_seconds(double seconds) {
  if (seconds >= 0 && seconds < std::numeric_limits<double>::infinity()) return seconds;
  throw Error(ErrorCode::kLimit, "step_seconds must be 0 (no bound) or more");
}

int64_t checked_patience(int64_t patience) {
  if (patience >= 0 && patience <= INT32_MAX) return patience;
  throw Error(ErrorCode::kLimit, "patience must be 0 to 2147483647");
}

}  // namespace npusim::serve
