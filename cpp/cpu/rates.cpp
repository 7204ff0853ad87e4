#include "cpp/cpu/rates.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "cpp/cpu/host_memory.h"

namespace npusim::cpu {
namespace {

constexpr int64_t kReadBytes = int64_t{256} << 20;  // beyond what caches hold
constexpr int kRepeats = 5;                         // the best counts: others use the machine too
constexpr double kSeconds = 0.02;                   // of a repeat, about

// One of several parts, on any worker.
using Part = std::function<float(int part)>;

// The seconds of a run of `parts` parts on all workers.
double seconds_of(ThreadPool& pool, int parts, const Part& part) {
  struct Context {
    const Part& part;
    std::atomic<float> kept{0};
  } context{part};
  ThreadPool::Job job(
      pool, {static_cast<uint16_t>(parts)},
      [](void* given, size_t, ThreadPool::Units units, int) {
        auto& held = *static_cast<Context*>(given);
        for (int unit = units.begin; unit < units.end; ++unit) {
          held.kept.store(held.part(unit), std::memory_order_relaxed);
        }
      },
      &context);
  const auto began = std::chrono::steady_clock::now();
  pool.run(job);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double fastest(ThreadPool& pool, int parts, const Part& part) {
  double best = seconds_of(pool, parts, part);
  for (int i = 1; i < kRepeats; ++i) best = std::min(best, seconds_of(pool, parts, part));
  return best;
}

double operations_per_second(const RateLoop& loop, ThreadPool& pool) {
  int64_t rounds = 1 << 12;
  const Part part = [&](int) { return loop.run(rounds); };
  for (; seconds_of(pool, pool.workers(), part) < kSeconds; rounds *= 2) {
  }
  const double all = static_cast<double>(loop.operations * rounds) * pool.workers();
  return all / fastest(pool, pool.workers(), part);
}

double bytes_per_second(const RateLoops& loops, ThreadPool& pool) {
  HostMemory memory(kReadBytes);
  auto* numbers = reinterpret_cast<float*>(memory.host());
  const int parts = 16 * pool.workers();  // a slow core takes fewer
  const int64_t count = kReadBytes / static_cast<int64_t>(sizeof(float)) / parts;
  std::fill(numbers, numbers + count * parts, 1.0f);  // pages that were never written share memory
  const Part part = [&](int i) { return loops.read(numbers + i * count, count); };
  return static_cast<double>(count * parts) * sizeof(float) / fastest(pool, parts, part);
}

}  // namespace

std::vector<MeasuredRate> measure_rates(const Isa& isa, ThreadPool& pool) {
  const RateLoops& loops = isa.rates();
  std::vector<MeasuredRate> rates = {{"read", bytes_per_second(loops, pool)}};
  for (const RateLoop& loop : loops.compute) {
    rates.push_back({loop.dtype, operations_per_second(loop, pool)});
  }
  return rates;
}

}  // namespace npusim::cpu
