// How workers agree without a lock (see thread_pool.h for what they do):
//
//  1. sequence_ names the current step. A share's `next` names a step, too, and the first unit of
//     the share that nobody has claimed in it; units belong to whoever moves it past them. A share
//     that names an earlier step is untouched, one that names a later step is of no use any more,
//     so nobody has to reset the shares when a step begins.
//  2. The worker that finishes the last unit of a step publishes the next step, whose release
//     carries the results of all units (each finisher passed through done_).
//  3. run() returns when its last step is left. Workers may then still be inside the job, looking
//     at shares in which they can claim nothing; Job's destructor waits for them, run() does not.
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
    : workers_(std::clamp(workers, 1, kMaxWorkers)),
      shares_(static_cast<size_t>(workers_)),
      process_(fork_depth()) {
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
      job.run_(job.context_, step, {0, job.units_[step]}, 0);
    }
    return;
  }
  const std::lock_guard turn(turn_);
  // One number is left out between runs: that of a finished run names no step of this one.
  const uint64_t first = sequence_.load(std::memory_order_relaxed) + 1;
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

// Goes through the steps of the job until it is left.
void ThreadPool::walk(Job& job, int worker) {
  const uint64_t first = job.first_.load(std::memory_order_acquire);
  const uint64_t steps = job.units_.size();
  for (;;) {
    const uint64_t sequence = sequence_.load(std::memory_order_acquire);
    const uint64_t step = sequence - first;  // of an older run: beyond any number of steps
    if (step >= steps) return;
    if (job.units_[step] > 1) {
      run_units(job, step, sequence, worker);
    } else if (worker == 0) {
      job.run_(job.context_, step, {0, 1}, 0);
      advance(sequence + 1);
    }
    await_change(sequence_, sequence);
  }
}

// Runs units of one step until none is unclaimed: a worker's own first, then its neighbours'.
void ThreadPool::run_units(Job& job, size_t step, uint64_t sequence, int worker) {
  const int units = job.units_[step];
  for (int i = 0; i < workers_; ++i) {
    const int share = (worker + i) % workers_;
    for (;;) {
      const Units claimed = claim(share, units, sequence);
      const int count = claimed.end - claimed.begin;
      if (count == 0) break;
      job.run_(job.context_, step, claimed, worker);
      if (done_.fetch_add(count, std::memory_order_acq_rel) + count < units) continue;
      done_.store(0, std::memory_order_relaxed);
      return advance(sequence + 1);
    }
  }
}

// Half of what is left of a share in a step of so many units; nothing, when nothing is.
ThreadPool::Units ThreadPool::claim(int share, int units, uint64_t sequence) {
  std::atomic<uint64_t>& next = shares_[static_cast<size_t>(share)].next;
  const auto place = [&](int64_t worker) {
    return sequence << kUnitBits | static_cast<uint64_t>(units * worker / workers_);
  };
  const uint64_t begin = place(share), end = place(share + 1);
  uint64_t seen = next.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t from = std::max(seen, begin);
    if (from >= end) return {0, 0};
    const uint64_t to = from + (end - from + 1) / 2;
    if (!next.compare_exchange_weak(seen, to, std::memory_order_acq_rel)) continue;
    return {static_cast<int>(from & kUnitMask), static_cast<int>(to - from + (from & kUnitMask))};
  }
}

void ThreadPool::advance(uint64_t sequence) {
  sequence_.store(sequence, std::memory_order_release);
  sequence_.notify_all();
}

void ThreadPool::wait_until_left() {
  if (forked()) return;
  const std::lock_guard turn(turn_);  // no job is running, so those inside are leaving
  for (int inside = inside_.load(); inside != 0; inside = inside_.load()) inside_.wait(inside);
}

}  // namespace npusim
