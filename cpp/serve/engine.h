// Many requests to one language model, served by a thread of its own: any thread may submit, cancel
// and poll, and whatever came of a step is there to be polled when the step has ended.
//
// Events of one request that nobody has polled become one, so slow readers cost no queue.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpp/serve/batch.h"

namespace npusim::serve {

struct EngineOptions {
  BatchOptions batch = {};
  int64_t max_waiting = 1024;  // requests beside those that can run; more are refused
};

// In a process that was forked from the engine's there is no such thread: all calls but the
// destructor throw Error(kBusy).
class Engine {
 public:
  // Throws as Batch, Error(kLimit) for a negative max_waiting, and Error(kDevice) where the system
  // gives no thread.
  Engine(std::shared_ptr<StepRunner> runner, const EngineOptions& options);
  ~Engine();  // as close
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes a request; returns its number, which is never used again. Throws Error(kLimit) for what
  // can never be served, Error(kBusy) when as many wait as may, or when the engine drains or is
  // closed, and Error(kDevice) when it has failed.
  RequestId submit(std::vector<int64_t> tokens, RequestOptions options);
  // Ends a request: nothing tells of it afterwards. Unknown ones are ignored.
  void cancel(RequestId id);
  // The tokens that may come next, for a request that is `masked`. Others are ignored.
  // Throws Error(kInput) for a mask that has not vocab_size bits, rounded up to words.
  void allow(RequestId id, TokenMask mask);

  // Waits for news, so many seconds at most, and returns it: an event a request, in the order in
  // which something first happened to each.
  std::vector<Event> poll(double seconds);

  // Whether this is the process that has the thread.
  bool is_here() const noexcept;
  BatchStats stats() const;
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
