// In which state two cores of a virtual machine are, whose neighbours nobody sees.
//
//     c++ -std=c++20 -O3 -march=native -pthread benchmarks/machine_state.cpp -o machine_state
//
// Prints the nanoseconds that a cache line takes from one core to the other, the least of several
// rounds: cores may be neighbours under one cache or not, and change places while the machine runs.
// And the GFLOP/s that both reach at once in registers, the median of several rounds: a core of the
// machine is half of one of the host, and the other half may be somebody's.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

namespace {

constexpr int kRounds = 8, kTurns = 1000;
constexpr int kLanes = 16, kSums = 12, kSteps = 30000;

using Clock = std::chrono::steady_clock;
using Vec [[gnu::vector_size(4 * kLanes)]] = float;

alignas(128) std::atomic<int> ball{0};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Answers whenever the number is of its own parity, as often as it is asked to.
void play(int side, int turns) {
  for (int i = 0; i < turns; ++i) {
    int seen = ball.load(std::memory_order_acquire);
    while ((seen & 1) != side) seen = ball.load(std::memory_order_acquire);
    ball.store(seen + 1, std::memory_order_release);
  }
}

float multiply() {
  Vec sums[kSums], a, b;
  for (int i = 0; i < kLanes; ++i) a[i] = b[i] = 0.5f;
  for (int j = 0; j < kSums; ++j) sums[j] = b + static_cast<float>(j);  // chains of their own
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kSums; ++j) sums[j] = sums[j] * a + b;
    asm volatile("" : "+m"(ball));  // not to be done once for all steps
  }
  float all = 0;
  for (const Vec& sum : sums) all += sum[0];
  return all;
}

}  // namespace

int main() {
  // The other thread is on its core before this one keeps its own: it would inherit the core.
  std::atomic<bool> ready{false};
  std::atomic<float> sink{0};
  std::thread other([&] {
    stay_on(1);
    ready = true;
    for (int i = 0; i < kRounds; ++i) play(1, kTurns);
    for (int i = 0; i < kRounds; ++i) {
      play(1, 1);
      sink = multiply();
      play(1, 1);
    }
  });
  while (!ready) std::this_thread::yield();
  stay_on(0);
  double least = 1e9;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = Clock::now();
    play(0, kTurns);
    least = std::min(least, seconds_since(start));
  }
  std::array<double, kRounds> rates;
  for (double& rate : rates) {
    play(0, 1);
    const auto start = Clock::now();
    sink = multiply();
    play(0, 1);
    while ((ball.load() & 1) != 0) {  // until the other one has answered
    }
    rate = 2e-9 * 2 * kLanes * kSums * kSteps / seconds_since(start);
  }
  other.join();
  std::sort(rates.begin(), rates.end());
  std::printf("%.0f %.0f\n", 1e9 * least / (2 * kTurns), rates[kRounds / 2]);
}
