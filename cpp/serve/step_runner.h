// The seam between the engine and what computes: one step of a language model over the rows of many
// requests, whose caches lie in pages. What a runner has to do is here; paged_model.h does it over
// a program, and tests do it over a model that shows every wrong page.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/serve/page_pool.h"

namespace npusim::serve {

struct RunnerFacts {
  int64_t vocab_size = 0;
  int64_t max_context = 0;      // tokens of one request
  int64_t page_tokens = 0;      // tokens of one page
  int64_t pages = 0;            // of all requests together
  int64_t max_step_tokens = 0;  // rows of a step
  int64_t max_requests = 0;     // entries of a step, and slots
  std::vector<int64_t> eos_tokens;
  bool is_asynchronous = false;  // start returns before the step has run
  bool finds_best = false;       // rows may ask for the best token instead of all scores
  bool copies_pages = false;     // plans may have copies, which are cheap
};

// Tokens of one request that follow each other.
struct StepRows {
  uint64_t request;                 // its number: for logs
  int64_t slot;                     // in [0, max_requests): the request's as long as it runs
  std::span<const int64_t> tokens;  // one at least
  int64_t first_position;           // of the first of them; those before are in the pages
  std::span<const Page> pages;      // of all positions up to the last of these
  uint64_t table = 0;  // one that has the same number, not 0, has these pages or begins with them
  bool wants_scores = false;  // of the token after the last one
  bool wants_best = false;    // the token of the highest of these scores, instead of them
  bool wants_all = false;     // the scores behind each token, instead of them

  // Of max_requests, those that the rows take: scores are given an entry.
  int64_t entries() const noexcept { return wants_all ? static_cast<int64_t>(tokens.size()) : 1; }
};

// What a page holds is to be in another one, too.
struct PageCopy {
  Page from, to;
};

// No slot stands there twice. Pages that are written stand in one request's table alone. Copies are
// made one after the other, before any row is written.
struct StepPlan {
  std::vector<StepRows> rows;
  std::vector<PageCopy> copies = {};
};

// Of all starts of a runner, in seconds: filling a step's inputs, sending them in so many copies,
// and handing the step to the device.
struct StartTimes {
  double fill = 0, send = 0, launch = 0;
  int64_t copies = 0;
};

// Steps run in the order of start, each after the one before. One thread at a time.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  virtual RunnerFacts facts() const = 0;
  // Starts a step; what the plan points to may change afterwards. Throws what a run throws.
  virtual void start(const StepPlan& plan) = 0;
  // Waits for the step that was started and not finished yet. Returns its scores, float32[scores
  // that are wanted, vocab_size] in the plan's order, valid until the next start. Throws what a run
  // throws: the pages' content is then undefined, and the next start may still succeed.
  virtual std::span<const float> finish() = 0;
  // Of the step that was finished: the tokens of rows that want the best one, in the plan's order;
  // the first of equal ones, NaN never, -1 where no score is above -inf. Valid as scores are.
  virtual std::span<const int64_t> best() const { return {}; }
  virtual StartTimes start_times() const { return {}; }
};

}  // namespace npusim::serve
