// How workers agree without a lock (see thread_pool.h for what they do):
//
//  1. ticket_ names the current step and its next unclaimed unit. A unit belongs to whoever
//     increments the ticket from it; that is also when the unit's data may be read, not earlier.
//  2. The worker that finishes the last unit of a step publishes the next step, whose release
//     carries the results of all units (each finisher passed through done_).
//  3. run() returns when the ticket has left its last step. Workers may then still be inside the
//     job, looking at a ticket they can no longer claim; Job's destructor waits for them, run()
//     does not.
#include "cpp/runtime/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "cpp/platform/cores.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr int kUnitBits = 16;
constexpr uint64_t kUnitMask = (uint64_t{1} << kUnitBits) - 1;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `word` differs from `seen`: spins while that is likely to be short, then offers the
// core to others, then sleeps. Cores may be oversubscribed, so spinning must not last.
template <typename T>
void await_change(const std::atomic<T>& word, T seen) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kSpin = std::chrono::microseconds(10), kYield = std::chrono::microseconds(50);
  const auto changed = [&] { return word.load(std::memory_order_acquire) != seen; };
  const auto start = Clock::now();
  for (auto waited = Clock::duration{}; waited < kYield; waited = Clock::now() - start) {
    for (int i = 0; i < 16; ++i) {
      if (changed()) return;
      pause();
    }
    if (waited > kSpin) std::this_thread::yield();
  }
  word.wait(seen, std::memory_order_acquire);
}

}  // namespace

ThreadPool::Job::Job(ThreadPool& pool, std::vector<uint16_t> units, Run run, void* context)
    : pool_(pool),
      units_(std::move(units)),
      run_(run),
      context_(context),
      parallel_(pool.workers() > 1 &&
                std::any_of(units_.begin(), units_.end(), [](int n) { return n > 1; })) {}

ThreadPool::Job::~Job() {
  if (parallel_) pool_.wait_until_left();
}

ThreadPool::ThreadPool(int workers, std::span<const int> cores)
    : workers_(std::clamp(workers, 1, kMaxWorkers)), process_(fork_depth()) {
  threads_.reserve(static_cast<size_t>(workers_ - 1));
  try {
    for (int i = 1; i < workers_; ++i) {
      const int core = cores.empty() ? -1 : cores[static_cast<size_t>(i) % cores.size()];
      threads_.emplace_back([this, i, core] {
        if (core >= 0) platform::pin_this_thread(core);
        work(i);
      });
    }
  } catch (const std::system_error& error) {
    const size_t started = threads_.size() + 1;
    stop();
    throw Error(ErrorCode::kDevice, "the system lets this process have " + std::to_string(started) +
                                        " of " + std::to_string(workers_) + " threads (" +
                                        error.code().message() + "); ask for fewer");
  }
}

ThreadPool::~ThreadPool() {
  if (forked()) {
    // The threads are the parent's, and their handles may name others here by now.
    static_cast<void>(new std::vector<std::thread>(std::move(threads_)));
  } else {
    stop();
  }
}

void ThreadPool::stop() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadPool::forked() const noexcept {
  return fork_depth() != process_;
}

void ThreadPool::run(Job& job) {
  if (!job.parallel_ || forked()) {
    for (size_t step = 0; step < job.units_.size(); ++step) {
      for (int unit = 0; unit < job.units_[step]; ++unit) job.run_(job.context_, step, unit, 0);
    }
    return;
  }
  const std::lock_guard turn(turn_);
  // One number is left out between runs: the ticket of a finished run names no step of this one.
  const uint64_t first = (ticket_.load(std::memory_order_relaxed) >> kUnitBits) + 1;
  job.first_.store(first, std::memory_order_release);
  advance(first);
  job_.store(&job);
  generation_.fetch_add(1);
  generation_.notify_all();
  walk(job, 0);
  job_.store(nullptr);
}

void ThreadPool::work(int worker) {
  for (uint32_t seen = 0; !stop_.load();) {
    await_change(generation_, seen);
    seen = generation_.load();
    inside_.fetch_add(1);  // before job_ is read: wait_until_left relies on the order
    if (Job* job = job_.load()) walk(*job, worker);
    inside_.fetch_sub(1);
    inside_.notify_all();
  }
}

// Goes through the steps of the job until the ticket leaves it.
void ThreadPool::walk(Job& job, int worker) {
  const uint64_t first = job.first_.load(std::memory_order_acquire);
  const uint64_t steps = job.units_.size();
  for (;;) {
    const uint64_t ticket = ticket_.load(std::memory_order_acquire);
    const uint64_t sequence = ticket >> kUnitBits;
    const uint64_t step = sequence - first;  // of an older run: beyond any number of steps
    if (step >= steps) return;
    const bool alone = job.units_[step] == 1;
    if (alone && worker == 0) {
      job.run_(job.context_, step, 0, 0);
      advance(sequence + 1);
    } else if (!alone && (ticket & kUnitMask) < job.units_[step]) {
      claim_units(job, step, sequence, worker);
    } else {
      await_change(ticket_, ticket);
    }
  }
}

// Runs units of one step until none is unclaimed.
void ThreadPool::claim_units(Job& job, size_t step, uint64_t sequence, int worker) {
  const uint64_t units = job.units_[step];
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (ticket >> kUnitBits == sequence && (ticket & kUnitMask) < units) {
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
    job.run_(job.context_, step, static_cast<int>(ticket & kUnitMask), worker);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int>(units)) {
      done_.store(0, std::memory_order_relaxed);
      advance(sequence + 1);
      return;
    }
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::advance(uint64_t sequence) {
  ticket_.store(sequence << kUnitBits, std::memory_order_release);
  ticket_.notify_all();
}

void ThreadPool::wait_until_left() {
  if (forked()) return;
  const std::lock_guard turn(turn_);  // no job is running, so those inside are leaving
  for (int inside = inside_.load(); inside != 0; inside = inside_.load()) inside_.wait(inside);
}

}  // namespace npusim
