// What a command buffer holds, and queues that execute: a thread a queue, one step of all queues at
// a time. Steps of a list run in order; what a concurrent encoder leaves open is inside of a step.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/threadgroup.h"

namespace softmetal {

double now_seconds();
std::uint64_t now_nanoseconds();

// A value that grows, and who waits for it. Those that wait on the host's side give a time limit.
class EventState {
 public:
  std::uint64_t value() const;
  void set(std::uint64_t value);
  // Whether it came within the time.
  bool wait(std::uint64_t value, double seconds);
  // `call` runs on the thread that sets the value, or at once.
  void notify(std::uint64_t value, std::function<void(std::uint64_t)> call);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t value_ = 0;
  std::vector<std::pair<std::uint64_t, std::function<void(std::uint64_t)>>> listeners_;
};

struct Step {
  std::function<Failure()> run;
  bool waits = false;  // for an event: others run meanwhile
};

class CommandList {
 public:
  enum Status { kNotEnqueued, kEnqueued, kCommitted, kScheduled, kCompleted, kError };

  std::vector<Step> steps;
  std::vector<std::function<void()>> scheduled_handlers, completed_handlers;
  std::function<void()> begin;  // in front of the handlers, on the queue's thread
  std::function<void()> last;   // behind the handlers, before who waits goes on
  double start = 0, end = 0;

  Status status() const;
  void set_status(Status status);
  Failure failure() const;
  // Blocks until the handlers have run.
  void wait_completed();
  void wait_scheduled();
  void execute();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status status_ = kNotEnqueued;
  bool handlers_done_ = false;
  Failure failure_;
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // Keeps its place for a list that is committed later.
  void enqueue(std::shared_ptr<CommandList> list);
  void commit(const std::shared_ptr<CommandList>& list);
  // The thread ends when all lists have run.
  void close();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<CommandList>> lists_;
  bool started_ = false, closed_ = false;
};

}  // namespace softmetal
