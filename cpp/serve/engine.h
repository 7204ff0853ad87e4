// Many requests to one language model, served by a thread of its own: any thread may submit, cancel
// and poll, and whatever came of a step is there to be polled when the step has ended.
//
// Events of one request that nobody has polled become one, so slow readers cost no queue. Requests
// may be shared out among readers, each of whom hears of its own alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpp/serve/batch.h"

namespace npusim::serve {

struct EngineOptions {
  BatchOptions batch = {};
  int64_t max_waiting = 1024;  // requests beside those that can run; more are refused
  // How long a step may take before the engine counts as hung: its requests fail, and more are
  // refused until the step ends after all. Time in which nobody polls counts for little, as the
  // process may have been stopped. 0: for ever.
  double most_step_seconds = 0;
};

// Who polls the news of a request: any number, 0 where nobody says another.
using ReaderId = uint64_t;

// In a process that was forked from the engine's there is no such thread: all calls but the
// destructor throw Error(kBusy).
class Engine {
 public:
  // Throws as Batch, Error(kLimit) for a negative max_waiting or most_step_seconds, and
  // Error(kDevice) where the system gives no thread.
  Engine(std::shared_ptr<StepRunner> runner, const EngineOptions& options);
  ~Engine();  // as close
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes a request; returns its number, which is never used again. Throws Error(kLimit) for what
  // can never be served, Error(kBusy) when as many wait as may, or when the engine drains or is
  // closed, and Error(kDevice) when it has failed.
  RequestId submit(std::vector<int64_t> tokens, RequestOptions options, ReaderId reader = 0);
  // Ends a request: nothing tells of it afterwards. Unknown ones are ignored.
  void cancel(RequestId id);
  // The tokens that may come next, for a request that is `masked`. Others are ignored.
  // Throws Error(kInput) for a mask that has not vocab_size bits, rounded up to words.
  void allow(RequestId id, TokenMask mask);

  // Waits for news of a reader's requests, so many seconds at most, and returns it: an event a
  // request, in the order in which something first happened to each. Who polls sees to it that
  // requests hear of a step that does not end.
  std::vector<Event> poll(double seconds, ReaderId reader = 0);
  // Ends all requests of a reader, and its waiting in poll. Its number is not to be used again.
  void leave(ReaderId reader);

  // Whether this is the process that has the thread.
  bool is_here() const noexcept;
  BatchStats stats() const;
  // Why nothing is served any more, or until a step ends; empty as long as something is.
  std::string failure() const;
  const RunnerFacts& facts() const noexcept;
  int64_t max_requests() const noexcept;  // that run at a time
  // Takes no more requests, and waits until all have ended, so many seconds at most; returns
  // whether they have.
  bool drain(double seconds);
  // Ends all requests, with Error(kBusy) as their last event, and the thread. What was not polled
  // can still be.
  void close();

 private:
  class Desk;
  Desk& desk() const;

  std::unique_ptr<Desk> desk_;
  uint32_t process_;  // fork_depth() of the one that has the thread
};

}  // namespace npusim::serve
