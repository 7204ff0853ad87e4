// Persistent workers that walk a list of steps together. Knows no kernels and no commands.
//
// A job is an ordered list of steps; the units of one step run in any order, on any worker, and
// all of them are done before the next step begins. Each worker has a share of neighbouring units
// that it claims first, in every step the same part, so that what it wrote in one step is near in
// the next. It claims half of what is left at a time: runs of units cost less than single ones.
// Workers are woken once per job, not once per step. A worker that wakes late, or never, delays
// nobody: its share is claimed by the others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cpp/platform/forks.h"

namespace npusim {

class ThreadPool {
 public:
  // Units [begin, end) of a step.
  struct Units {
    int begin, end;
  };

  // A list of steps, prepared once and run many times. Must not outlive its pool.
  class Job {
   public:
    // `run` is called with the context, the step, its units, and the worker in [0, workers()), from
    // several threads at once; it must not throw.
    using Run = void (*)(void* context, size_t step, Units units, int worker);

    // units[s] in [1, kMaxUnits] is the number of units of step s; a step of one unit runs on the
    // thread that calls ThreadPool::run.
    Job(ThreadPool& pool, std::vector<uint16_t> units, Run run, void* context);
    ~Job();  // waits for workers that are still on their way out of this job
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    friend class ThreadPool;
    ThreadPool& pool_;
    std::vector<uint16_t> units_;
    Run run_;
    void* context_;
    bool parallel_;                   // some step has more than one unit
    std::atomic<uint64_t> first_{0};  // sequence number of step 0 in the current run
  };

  static constexpr int kMaxUnits = 0xFFFF;
  static constexpr int kMaxWorkers = 1024;

  // `workers` >= 1 counts the calling thread. With `cores`, worker i stays on
  // cores[i % cores.size()]; the calling thread is never pinned. Throws Error(kDevice) when the
  // system gives fewer threads.
  explicit ThreadPool(int workers, std::span<const int> cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const noexcept { return workers_; }

  // Runs all steps; returns when the last is done. Allocates nothing. Calls from several threads
  // take turns, except for jobs without a parallel step, which need no workers. In a process forked
  // from the pool's, where its workers do not exist, the caller runs all steps by itself.
  void run(Job& job);

 private:
  void work(int worker);
  void walk(Job& job, int worker);
  void run_units(Job& job, size_t step, uint64_t sequence, int worker);
  Units claim(int share, int units, uint64_t sequence);
  void advance(uint64_t sequence);
  void wait_until_left();
  void stop();
  bool forked() const noexcept;

  // The first unclaimed unit of a worker's share: sequence number of its step << 16 | unit. Of a
  // step with a greater number, none is claimed.
  struct alignas(64) Share {
    std::atomic<uint64_t> next{0};
  };

  // The step being run. The numbers grow over the life of the pool, so a claim can never hit a step
  // of another run.
  alignas(64) std::atomic<uint64_t> sequence_{0};
  alignas(64) std::atomic<int> done_{0};             // units of the current step that are done
  alignas(64) std::atomic<uint32_t> generation_{0};  // counts parallel runs; idle workers watch it
  std::atomic<Job*> job_{nullptr};
  std::atomic<int> inside_{0};  // workers that may be reading job_
  std::atomic<bool> stop_{false};
  std::mutex turn_;
  int workers_;
  std::vector<Share> shares_;
  uint32_t process_;  // fork_depth() of the one the threads belong to
  std::vector<std::thread> threads_;
};

}  // namespace npusim
