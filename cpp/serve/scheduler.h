// Which tokens of which requests run in the next step: a function of how far everybody is, and of
// nothing else.
//
//  1. Requests that generate come first: each of them has a row in every step. One that needs a
//  page
//     when none is free takes those of the request that ranks last, which waits then, and computes
//     its tokens anew later.
//  2. Then prompts, in chunks that end with pages, as far as the step's tokens reach; those whose
//     every score is wanted, as far as its entries do.
//  3. Then requests that wait, in order; nobody overtakes the first of them. One is admitted with
//     the pages of all its tokens, and only if the free ones that are left let it and everybody
//     that runs go on until it has made tokens of its own. So nobody is admitted, put back and
//     admitted again for nothing, and a lone request is always admitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace npusim::serve {

// A request that runs. Tokens are counted as they will be when the step before has ended.
struct RunningLoad {
  int64_t known = 0;        // prompt and answer
  int64_t scheduled = 0;    // of these, those that have been in a step
  int64_t most = 0;         // tokens that it can come to have in pages
  int64_t pages = 0;        // that it holds
  bool scores_all = false;  // the scores of each token are wanted
  bool is_held = false;     // nothing to do: it waits for its caller, or has come to its end

  int64_t pending() const noexcept { return known - scheduled; }
};

// A request that waits.
struct WaitingLoad {
  int64_t known = 0, most = 0;
  int64_t cached_pages = 0;   // pages of its first tokens that are there already
  int64_t shared_pages = 0;   // of these, those that are held by others
  int64_t copied_tokens = 0;  // that are copied to the page behind those
  bool scores_all = false;
  bool is_held = false;  // has nothing to do yet when it is admitted
};

// What a schedule asks where it matters. Answers do not change what is there.
class SchedulerView {
 public:
  virtual ~SchedulerView() = default;
  // How many pages become free when the running requests from this one on let go of theirs.
  virtual int64_t freed_from(size_t running) const = 0;
  // The one that waits behind `place` others; nothing behind the last one.
  virtual std::optional<WaitingLoad> waiting(size_t place) const = 0;
};

struct StepLimits {
  int64_t page_tokens = 0;
  int64_t step_tokens = 0;          // of a step; as many as requests at least
  int64_t prompt_tokens = 0;        // of prompts in this step; one at least
  int64_t least_prompt_tokens = 0;  // that steps to come will have
  int64_t requests = 0;             // that run
  // Of a step: a request each, or a token whose scores are wanted each; as many as requests at
  // least.
  int64_t entries = std::numeric_limits<int64_t>::max();
  int64_t scored_tokens = 1;  // of one request in a step, where the scores of each are wanted
};

struct Share {
  size_t request;  // among the running; those admitted now follow behind
  int64_t tokens;
};

struct Schedule {
  std::vector<Share> shares;  // the rows of the step, in order
  size_t preempted = 0;       // so many of the running, from the last one, are put back
  size_t admitted = 0;        // so many of the waiting, from the first one
};

// `running` in the order of rank. Nothing is taken or changed: that is for the caller, in the order
// of the result.
Schedule schedule(std::span<const RunningLoad> running, int64_t free_pages,
                  const SchedulerView& view, const StepLimits& limits);

// Pages of so many tokens.
constexpr int64_t pages_of(int64_t tokens, int64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

}  // namespace npusim::serve
