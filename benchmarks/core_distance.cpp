// How far apart two cores are: the nanoseconds that a cache line takes from one to the other.
//
//     c++ -std=c++20 -O2 -pthread benchmarks/core_distance.cpp -o core_distance && ./core_distance
//
// Two threads, each on a core of its own, answer each other through one atomic number; printed is the
// least of several rounds, for one way. Cores of a virtual machine may be neighbours under one cache,
// or not, and change places while it runs.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

namespace {

constexpr int kRounds = 8, kTurns = 1000;

alignas(128) std::atomic<int> ball{0};

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

double seconds_of_a_round() {
  const auto start = std::chrono::steady_clock::now();
  play(0, kTurns);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main() {
  // The other thread is on its core before this one keeps its own: it would inherit the core.
  std::atomic<bool> ready{false};
  std::thread other([&ready] {
    stay_on(1);
    ready = true;
    for (int i = 0; i < kRounds; ++i) play(1, kTurns);
  });
  while (!ready) std::this_thread::yield();
  stay_on(0);
  double least = seconds_of_a_round();
  for (int i = 1; i < kRounds; ++i) {
    least = std::min(least, seconds_of_a_round());
  }
  other.join();
  std::printf("%.0f\n", 1e9 * least / (2 * kTurns));
}
