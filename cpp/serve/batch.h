// All requests that an engine serves, and one step after the other: what waits, what runs, and what
// came of it. No threads and no clock decide anything here (but for BatchOptions::step_seconds), so
// the same calls in the same order give the same events.
//
// On an asynchronous runner the next step is planned while one runs: a token that is being chosen
// counts as there, and a request that turns out to have ended loses its rows before the step
// starts.
//
// Invariants, between calls
//  1. Requests that run are in the order of their ranks, with a slot each. Those that wait, in the
//     queue or for the prompt of the one they follow, hold no page.
//  2. `scheduled` tokens of a request have run, or are in the step that runs.
//  3. Pages are as paged_cache.h says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpp/serve/active_request.h"
#include "cpp/serve/batch_options.h"
#include "cpp/serve/pace.h"
#include "cpp/serve/paged_cache.h"
#include "cpp/serve/request.h"
#include "cpp/serve/scheduler.h"
#include "cpp/serve/step_runner.h"
#include "cpp/serve/token_choice.h"
#include "cpp/serve/waiting_queue.h"

namespace npusim::serve {

struct BatchStats {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, free_pages = 0, kept_pages = 0;
  int64_t steps = 0, failed_steps = 0, preemptions = 0;
  int64_t prompt_tokens = 0;  // that ran, those computed anew included
  int64_t generated_tokens = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  // tokens of prompts; those found in pages
  int64_t stopped = 0, at_length = 0, cancelled = 0, failed = 0;  // requests that ended
  // Of the thread: planning steps, in steps of the runner, starting these (a part of them), and
  // choosing tokens. An engine adds what it takes to hear requests and to tell of steps.
  double plan_seconds = 0, runner_seconds = 0, start_seconds = 0, choice_seconds = 0;
  double desk_seconds = 0;
  StartTimes starts;  // what start_seconds went into, as the runner tells
};

class Batch {
 public:
  // Throws Error(kLimit) for options out of range, or a runner that cannot serve one request.
  Batch(std::shared_ptr<StepRunner> runner, const BatchOptions& options);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // What may be asked: any thread may call it. Throws Error(kLimit) that names all that is wrong.
  void check(std::span<const int64_t> tokens, const RequestOptions& options) const;
  // Takes a request that was checked, under a number above all before.
  void submit(RequestId id, std::vector<int64_t> tokens, RequestOptions options);
  // Ends a request without an event; its pages are free at once. Unknown ones are ignored.
  void cancel(RequestId id);
  // Says which tokens may come next to a request that is `masked`. Others are ignored.
  void allow(RequestId id, TokenMask mask);

  // Makes a step; returns whether there was anything to do. Throws nothing that a runner throws:
  // requests that run get it as an event, and after kMostFailures in a row all get it.
  bool step();
  // How long requests that wait while none runs may wait for others that come with them: a small
  // share of what their step is expected to take; 0 where nobody knows that, or it is full.
  double gathering_seconds() const;
  // What happened since the last time, in order.
  std::vector<Event> take_events();
  // Ends all requests with this error.
  void end_all(const Error& error);

  // Why nothing can be served any more; empty as long as that is not so.
  const std::string& failure() const noexcept { return failure_; }
  bool is_idle() const noexcept { return requests_.empty(); }
  BatchStats stats() const;
  // These never change: any thread may ask.
  const RunnerFacts& facts() const noexcept { return facts_; }
  int64_t max_requests() const noexcept { return limits_.requests; }

  // For tests: throws std::logic_error that says which invariant does not hold.
  void check_invariants() const;

  static constexpr int kMostFailures = 3;

 private:
  // Tokens of a request in a step.
  struct Row {
    ActiveRequest* request;
    int64_t first, count;
    bool chooses;     // the next token
    int64_t records;  // log-probabilities of the prompt's next tokens, from the first row on
    bool takes_best = false;  // chooses the best token: needs no scores

    // How many rows' scores it gets: all, or the last one's, or none.
    int64_t scores() const noexcept { return records > 0 ? count : chooses && !takes_best ? 1 : 0; }
  };
  using Step = std::vector<Row>;
  class View;

  Step plan();
  Step apply(const Schedule& made, View& view);
  void preempt_last();
  void admit(ActiveRequest& request, const PrefixMatch& match);
  int64_t copied_tokens(const ActiveRequest& request, const PrefixMatch& match) const;
  Row row_of(ActiveRequest& request, int64_t tokens);
  bool start(Step step);
  bool settle();
  ActiveRequest* followed_by(const ActiveRequest& request) const;
  void note_beginning(const ActiveRequest& first, ActiveRequest& request) const;
  void let_follow(RequestId id);
  void record(const Row& row, std::span<const float> scores);
  void settle_row(const Row& row, std::span<const float> scores, int64_t best);
  void choose(const Row& row, std::span<const float> scores, int64_t best);
  void fail_running(const Error& error);
  void fail_all(const Error& error);
  void leave(ActiveRequest& request);
  void finish(ActiveRequest& request, Ending ending);
  void fail(ActiveRequest& request, const Error& error);
  Event& event_of(const ActiveRequest& request);

  std::shared_ptr<StepRunner> runner_;
  RunnerFacts facts_;
  StepLimits limits_;
  PromptPace pace_;
  PagedCache cache_;
  WaitingQueue waiting_;
  std::unordered_map<RequestId, std::vector<RequestId>> followers_;  // by whom they wait for
  int64_t following_ = 0;                                            // how many of those there are
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  std::vector<std::unique_ptr<ActiveRequest>> ended_;  // that a step may still name
  std::vector<ActiveRequest*> running_;
  std::vector<int64_t> slots_;  // that are free
  Step in_flight_;
  std::vector<PageCopy> copies_;  // for the next step
  StepPlan plan_;
  std::vector<Event> events_;
  std::vector<RunningLoad> loads_;
  ChoiceRoom room_;
  double started_ = 0, start_took_ = 0;  // of the step in flight, in seconds
  BatchStats stats_;
  int failures_ = 0;  // steps in a row
  std::string failure_;
};

}  // namespace npusim::serve
