// The engine's thread among others: submitting, polling, cancelling, draining, closing, forking.
#include "cpp/serve/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "tests/cpp/check.h"
#include "tests/cpp/hash_runner.h"

namespace npusim::tests {
namespace {

using namespace npusim::serve;
using Tokens = std::vector<int64_t>;

constexpr double kLong = 60;  // seconds, for what happens at once

RunnerFacts facts_of_tests(bool is_asynchronous = false) {
  return {.vocab_size = 24,
          .max_context = 64,
          .page_tokens = 4,
          .pages = 64,
          .max_step_tokens = 32,
          .max_requests = 8,
          .eos_tokens = {},
          .is_asynchronous = is_asynchronous};
}

// A runner whose steps wait until they are let go.
class HeldRunner : public HashRunner {
 public:
  using HashRunner::HashRunner;
  void start(const StepPlan& plan) override {
    starts.fetch_add(1);
    starts.notify_all();
    held.wait(true);
    HashRunner::start(plan);
  }
  void let_go() {
    held = false;
    held.notify_all();
  }
  std::atomic<bool> held{true};
  std::atomic<int> starts{0};
};

// A runner whose steps take long, and which counts how many requests each had.
class SlowRunner : public HashRunner {
 public:
  using HashRunner::HashRunner;
  void start(const StepPlan& plan) override {
    most = std::max(most.load(), plan.rows.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    HashRunner::start(plan);
  }
  std::atomic<size_t> most{0};
};

RequestOptions asking(int64_t max_tokens) {
  RequestOptions options;
  options.max_tokens = max_tokens;
  return options;
}

std::map<RequestId, Event> poll_until_ended(Engine& engine, size_t count) {
  std::map<RequestId, Event> all;
  size_t ended = 0;
  for (int quiet = 0; ended < count && quiet < 60;) {
    const std::vector<Event> events = engine.poll(1);
    quiet = events.empty() ? quiet + 1 : 0;
    for (const Event& event : events) {
      ended += event.is_last() ? 1 : 0;
      const auto [place, is_new] = all.emplace(event.request, event);
      if (!is_new) place->second.add(event);
    }
  }
  check(ended == count, "all have ended");
  return all;
}

void serves_many_threads(bool is_asynchronous) {
  const RunnerFacts facts = facts_of_tests(is_asynchronous);
  Engine engine(std::make_shared<HashRunner>(facts), {.max_waiting = 1000});
  std::vector<std::thread> callers;
  std::array<std::map<RequestId, Tokens>, 4> asked;
  std::atomic<int> cancelled{0};
  for (size_t i = 0; i < asked.size(); ++i) {
    callers.emplace_back([&, i] {
      for (int64_t n = 0; n < 50; ++n) {
        const Tokens tokens = {static_cast<int64_t>(i), n % 7, 2};
        const RequestId id = engine.submit(tokens, asking(5 + n % 9));
        if (n % 10 == 9) {
          engine.cancel(id);  // what it may have told before is dropped, or polled
          ++cancelled;
        } else {
          asked[i].emplace(id, tokens);
        }
        static_cast<void>(engine.stats());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  const bool is_drained = engine.drain(kLong);
  check(is_drained, "all have ended");
  std::map<RequestId, Event> all;
  for (Event& event : engine.poll(0)) all.emplace(event.request, std::move(event));
  for (const auto& mine : asked) {
    for (const auto& [id, tokens] : mine) {
      const Event& event = all[id];
      const auto made = static_cast<int64_t>(event.tokens.size());
      const AloneAnswer alone = answer_alone(facts, tokens, asking(made), 3 + made, {}, nullptr);
      check(made >= 5 && event.tokens == alone.tokens && event.ending == Ending::kLength,
            "each has its answer, in one event");
    }
  }
  check(engine.stats().free_pages == 64 && engine.stats().waiting == 0, "nothing is left");
}

void polls_as_it_goes() {
  Engine engine(std::make_shared<HashRunner>(facts_of_tests()), {});
  const RequestId id = engine.submit({1, 2}, asking(7));
  const std::map<RequestId, Event> all = poll_until_ended(engine, 1);
  check(all.at(id).tokens.size() == 7, "all tokens");
  check(engine.poll(0).empty(), "and nothing twice");
  check(engine.poll(-1).empty() && engine.poll(0.001).empty(), "no news");
}

void refuses_where_the_queue_is_full() {
  const auto runner = std::make_shared<HeldRunner>(facts_of_tests());
  Engine engine(runner, {.batch = {.max_requests = 2}, .max_waiting = 1});
  for (int i = 0; i < 3; ++i) engine.submit({1}, asking(2));
  check_refused(ErrorCode::kBusy, "The queue is full: 3", [&] { engine.submit({1}, asking(2)); });
  runner->let_go();
  poll_until_ended(engine, 3);
  engine.submit({1}, asking(2));
  poll_until_ended(engine, 1);
  check_refused(ErrorCode::kLimit, "no tokens", [&] { engine.submit({}, asking(2)); });
  check_refused(ErrorCode::kInput, "2 words", [&] { engine.allow(1, {1, 2}); });
  check_refused(ErrorCode::kLimit, "max_waiting",
                [&] { const Engine negative(runner, {.max_waiting = -1}); });
}

void takes_ten_thousand() {
  Engine engine(std::make_shared<HashRunner>(facts_of_tests()), {.max_waiting = 10'000});
  for (int64_t i = 0; i < 10'000; ++i) engine.submit({i % 24}, asking(1));
  const std::map<RequestId, Event> all = poll_until_ended(engine, 10'000);
  for (const auto& [id, event] : all) check(event.tokens.size() == 1, "a token each");
}

// As soon as it is known what a step takes, one waits for a share of that for others. Threads come
// late at times, so this may take several attempts.
void begins_requests_together_that_come_together() {
  const auto runner = std::make_shared<SlowRunner>(facts_of_tests());
  Engine engine(runner, {});
  const Tokens prompt(20, 1);
  for (int attempt = 0; attempt < 20 && runner->most < 2; ++attempt) {
    engine.submit(prompt, asking(1));
    if (attempt > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      engine.submit(prompt, asking(1));
    }
    poll_until_ended(engine, attempt > 0 ? 2 : 1);
  }
  check(runner->most == 2, "both are in one step");
}

void cancels_while_a_step_runs() {
  const auto runner = std::make_shared<HeldRunner>(facts_of_tests());
  Engine engine(runner, {});
  const RequestId id = engine.submit({1}, asking(9));
  const RequestId other = engine.submit({1}, asking(2));
  runner->starts.wait(0);
  engine.cancel(id);
  engine.cancel(id);
  engine.cancel(4711);
  runner->let_go();
  const std::map<RequestId, Event> all = poll_until_ended(engine, 1);
  check(all.size() == 1 && all.contains(other), "nothing tells of what was cancelled");
}

void tells_each_reader_of_its_own() {
  const auto runner = std::make_shared<HeldRunner>(facts_of_tests());
  Engine engine(runner, {.max_waiting = 9});
  const RequestId first = engine.submit({1}, asking(4), 7);
  const RequestId second = engine.submit({2}, asking(4), 8);
  const RequestId third = engine.submit({3}, asking(4));
  const RequestId left = engine.submit({4}, asking(4), 9);
  runner->starts.wait(0);
  engine.leave(9);
  engine.leave(9);
  engine.leave(4711);
  runner->let_go();
  check(engine.drain(kLong), "who left does not hold the end up");
  const auto told = [&](ReaderId reader, RequestId id) {
    const std::vector<Event> events = engine.poll(kLong, reader);
    return events.size() == 1 && events[0].request == id && events[0].tokens.size() == 4;
  };
  check(told(8, second) && told(0, third) && told(7, first), "each hears of its own");
  check(engine.poll(0, 7).empty() && engine.poll(0, 9).empty(), "and of nothing twice");
  check(left != third && engine.stats().free_pages == 64, "what was left is nobody's");
}

void drains_and_closes() {
  const auto runner = std::make_shared<HeldRunner>(facts_of_tests());
  Engine engine(runner, {});
  engine.submit({1}, asking(3));
  check(!engine.drain(0.01), "it has not ended");
  check_refused(ErrorCode::kBusy, "shutting down", [&] { engine.submit({1}, asking(3)); });
  runner->let_go();
  check(engine.drain(kLong), "now it has");
  engine.close();
  engine.close();
  check(engine.poll(kLong).size() == 1, "what was not polled can still be");
  check(engine.poll(kLong).empty(), "and nobody waits for more");
  check_refused(ErrorCode::kBusy, "was closed", [&] { engine.submit({1}, asking(3)); });
}

void ends_what_is_left() {
  const auto runner = std::make_shared<HeldRunner>(facts_of_tests());
  Engine engine(runner, {.max_waiting = 1'000'000});
  size_t submitted = 0;
  for (; submitted < 20; ++submitted) engine.submit({1}, asking(30));
  runner->starts.wait(0);
  std::thread closing([&] { engine.close(); });
  try {
    for (;; ++submitted) engine.submit({1}, asking(30));
  } catch (const Error&) {  // it is closed: no step follows the one that is held
  }
  runner->let_go();
  closing.join();
  const std::vector<Event> events = engine.poll(0);
  check(events.size() == submitted, "each is told");
  for (const Event& event : events) {
    check(event.error && event.error->code() == ErrorCode::kBusy, "that it was ended");
  }
}

void says_that_it_has_failed() {
  const auto runner = std::make_shared<HashRunner>(facts_of_tests());
  runner->fails_always = true;
  runner->fails_at_finish = 0;
  Engine engine(runner, {});
  for (int i = 0; i < Batch::kMostFailures; ++i) {
    engine.submit({1}, asking(2));
    const std::map<RequestId, Event> all = poll_until_ended(engine, 1);
    check(all.begin()->second.error->code() == ErrorCode::kDevice, "the device's error");
  }
  check_refused(ErrorCode::kDevice, "has failed", [&] { engine.submit({1}, asking(2)); });
  check(engine.failure().find("has failed") != std::string::npos, "and says why");
}

void ends_requests_of_a_step_that_hangs() {
  const auto runner = std::make_shared<HeldRunner>(facts_of_tests());
  Engine engine(runner, {.max_waiting = 9, .most_step_seconds = 0.5});
  const RequestId first = engine.submit({1}, asking(3), 7);
  runner->starts.wait(0);
  const RequestId second = engine.submit({2}, asking(3));
  check(engine.poll(0.1).empty() && engine.failure().empty(), "a step may take a while");
  const auto hears = [&](ReaderId reader, RequestId id) {
    const std::vector<Event> events = engine.poll(kLong, reader);
    return events.size() == 1 && events[0].request == id && events[0].error &&
           events[0].error->code() == ErrorCode::kDevice;
  };
  check(hears(0, second) && hears(7, first), "those that run and those that wait are told");
  check(engine.drain(kLong) && engine.stats().waiting == 0, "none is left to wait for");
  check(engine.failure().find("hangs") != std::string::npos, "and everybody why");
  check(engine.poll(0).empty() && engine.poll(1.5, 7).empty(), "once");
  runner->let_go();
  for (int i = 0; i < 600 && !engine.failure().empty(); ++i) engine.poll(0.1);
  check(engine.failure().empty() && engine.poll(0, 7).empty(), "what came late is nobody's");
  for (int i = 0; i < 600 && engine.stats().free_pages < 64; ++i) engine.poll(0.1);
  check(engine.stats().free_pages == 64 && engine.stats().running == 0, "and their pages free");
}

void serves_again_after_a_step_that_hung() {
  const auto runner = std::make_shared<HeldRunner>(facts_of_tests());
  Engine engine(runner, {.most_step_seconds = 0.01});
  engine.submit({1}, asking(3));
  check(engine.poll(kLong).size() == 1, "it is told");
  check_refused(ErrorCode::kDevice, "hangs", [&] { engine.submit({1}, asking(3)); });
  runner->let_go();
  for (int i = 0; i < 600 && !engine.failure().empty(); ++i) engine.poll(0.1);
  const RequestId id = engine.submit({1, 2}, asking(7));
  check(poll_until_ended(engine, 1).at(id).tokens.size() == 7, "and others are served");
  check_refused(ErrorCode::kLimit, "most_step_seconds",
                [&] { const Engine negative(runner, {.most_step_seconds = -1}); });
}

#ifndef _WIN32
void serves_no_forked_process() {
  const auto runner = std::make_shared<HeldRunner>(facts_of_tests());
  auto engine = std::make_unique<Engine>(runner, EngineOptions{});
  engine->submit({1}, asking(3));
  runner->starts.wait(0);
  const int failures_before = failures;
  const pid_t child = fork();
  if (child == 0) {
    check_refused(ErrorCode::kBusy, "forked", [&] { engine->submit({1}, asking(3)); });
    check_refused(ErrorCode::kBusy, "forked", [&] { engine->poll(kLong); });
    check_refused(ErrorCode::kBusy, "forked", [&] { engine->close(); });
    engine.reset();  // and ends nothing
    _exit(failures == failures_before ? 0 : 1);
  }
  int status = -1;
  check(waitpid(child, &status, 0) == child && status == 0, "the child is refused");
  runner->let_go();
  check(poll_until_ended(*engine, 1).size() == 1, "the parent goes on");
}
#endif

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  serves_many_threads(false);
  serves_many_threads(true);
  polls_as_it_goes();
  refuses_where_the_queue_is_full();
  takes_ten_thousand();
  begins_requests_together_that_come_together();
  cancels_while_a_step_runs();
  tells_each_reader_of_its_own();
  drains_and_closes();
  ends_what_is_left();
  says_that_it_has_failed();
  ends_requests_of_a_step_that_hangs();
  serves_again_after_a_step_that_hung();
#ifndef _WIN32
  serves_no_forked_process();
#endif
  return exit_code();
}
