// The thread pool: every unit once, steps in order, serial steps on the caller, whatever the
// scheduler does. Run it under -fsanitize=thread too.
#include "cpp/runtime/thread_pool.h"

#include <array>
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/cpp/check.h"

namespace npusim::tests {
namespace {

// A job that counts, and that notices a step which begins before the one before it is done.
class Counted {
 public:
  Counted(ThreadPool& pool, std::vector<uint16_t> units)
      : units_(units), seen_(units.size()), runs_(units.size()), job_(pool, units, run, this) {}

  ThreadPool::Job& job() { return job_; }
  void expect(int runs, int workers) {
    for (size_t step = 0; step < units_.size(); ++step) {
      check(runs_[step] == runs * units_[step], "units of step " + std::to_string(step));
      check(seen_[step] == runs * units_[step] * (units_[step] + 1) / 2, "each unit once");
    }
    check(!disorder_, "a step began before the one before it was done");
    check(!wrong_thread_, "a serial step ran on a worker");
    check(most_ < workers, "worker number");
  }

 private:
  static void run(void* context, size_t step, ThreadPool::Units units, int worker) {
    auto& self = *static_cast<Counted*>(context);
    for (int unit = units.begin; unit < units.end; ++unit) self.run_unit(step, unit, worker);
  }
  void run_unit(size_t step, int unit, int worker) {
    // Plain values, handed from step to step: a thread sanitizer sees whether order is ordered.
    if (step > 0 && units_[step - 1] == 1 && plain_ != static_cast<int>(step)) {
      disorder_ = true;
    }
    if (units_[step] == 1) {
      wrong_thread_ = wrong_thread_ || worker != 0;
      plain_ = static_cast<int>(step) + 1;
    }
    if (step > 0 && runs_[step - 1] % units_[step - 1] != 0) disorder_ = true;
    seen_[step] += unit + 1;
    most_ = std::max(most_.load(), worker);
    ++runs_[step];
  }

  std::vector<uint16_t> units_;
  std::vector<std::atomic<int>> seen_, runs_;
  std::atomic<bool> disorder_{false}, wrong_thread_{false};
  std::atomic<int> most_{0};
  int plain_ = 0;
  ThreadPool::Job job_;
};

const std::vector<uint16_t> kMixed = {1, 7, 1, 2, 64, 1, 300, 3, 1};

void runs_every_unit_once_and_in_order() {
  for (const int workers : {1, 2, 3, 8}) {
    ThreadPool pool(workers);
    check(pool.workers() == workers, "workers");
    Counted counted(pool, kMixed);
    for (int i = 0; i < 200; ++i) pool.run(counted.job());
    counted.expect(200, workers);
  }
}

void runs_jobs_of_several_threads() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&pool, i] {
      Counted parallel(pool, kMixed), serial(pool, {1, 1, 1});
      for (int run = 0; run < 100; ++run) {
        pool.run(parallel.job());
        if (i % 2) pool.run(serial.job());
      }
      parallel.expect(100, 3);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void jobs_can_die_right_after_a_run() {
  ThreadPool pool(4);
  for (int i = 0; i < 500; ++i) {
    const auto counted = std::make_unique<Counted>(pool, std::vector<uint16_t>{2, 1, 5});
    pool.run(counted->job());
    counted->expect(1, 4);
  }
}

void sleeping_workers_wake() {
  ThreadPool pool(2);
  Counted counted(pool, kMixed);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pool.run(counted.job());
  }
  counted.expect(20, 2);
}

void empty_jobs_and_pools() {
  ThreadPool pool(2);
  Counted nothing(pool, {});
  pool.run(nothing.job());
  for (int i = 0; i < 20; ++i) ThreadPool unused(4);
}

void pins_to_cores_that_exist_or_not() {
  const std::array<int, 2> cores = {0, 100'000};
  ThreadPool pool(3, cores);
  Counted counted(pool, kMixed);
  pool.run(counted.job());
  counted.expect(1, 3);
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  runs_every_unit_once_and_in_order();
  runs_jobs_of_several_threads();
  jobs_can_die_right_after_a_run();
  sleeping_workers_wake();
  empty_jobs_and_pools();
  pins_to_cores_that_exist_or_not();
  return exit_code();
}
