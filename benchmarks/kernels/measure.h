// How the kernel benchmarks measure: the best of many short runs, against the multiply-add rate
// that this processor reaches in the same program. One thread is measured in its own CPU time, so
// that other processes do not count; several threads in wall-clock time, so an idle machine helps.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/cpu/kernel.h"

namespace npusim::cpu {
using KernelTable = std::span<const KernelEntry* const>;
namespace baseline {
KernelTable kernel_table();
}
namespace avx2 {
KernelTable kernel_table();
}
namespace avx512 {
KernelTable kernel_table();
}
namespace avx512bf16 {
KernelTable kernel_table();
}
}  // namespace npusim::cpu

namespace npusim::bench {

inline double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
inline double wall_seconds() {
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(t).count();
}

template <int Bytes>
struct Floats {
  typedef float type __attribute__((vector_size(Bytes)));
};

// Multiply-adds that depend on nothing: 12 chains hide the latency of any processor we know.
template <int Bytes>
[[gnu::always_inline]] inline double chains(int rounds) {
  using V = typename Floats<Bytes>::type;
  V acc[12];
  for (int c = 0; c < 12; ++c) acc[c] = V{} + static_cast<float>(c);  // no two chains alike
  V x = V{} + 1.0F, y = V{} + 1e-9F;
  asm volatile("" : "+m"(x), "+m"(y));  // the compiler must not know that x is 1
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < 12; ++c) acc[c] = acc[c] * x + y;
  }
  V sum{};
  for (const V& a : acc) sum += a;
  volatile float keep = sum[0];
  (void)keep;
  return 2.0 * 12 * (Bytes / 4) * rounds;
}
[[gnu::target("sse2")]] inline double chains_baseline(int n) {
  return chains<16>(n);
}
[[gnu::target("avx2,fma")]] inline double chains_avx2(int n) {
  return chains<32>(n);
}
[[gnu::target("avx512f,fma")]] inline double chains_avx512(int n) {
  return chains<64>(n);
}

struct Isa {
  const char* name;
  bool runs;
  cpu::KernelTable table;
  double (*chains)(int);

  const cpu::KernelEntry& operator[](std::string_view kernel) const {
    for (const cpu::KernelEntry* entry : table) {
      if (entry && entry->name == kernel) return *entry;
    }
    std::fprintf(stderr, "%s has no kernel %.*s\n", name, static_cast<int>(kernel.size()),
                 kernel.data());
    std::exit(1);
  }
  // Floating-point operations a second of one core, just now.
  double peak() const {
    double best = 0;
    for (int i = 0; i < 8; ++i) {
      const double start = thread_seconds();
      const double flops = chains(5000);
      best = std::max(best, flops / (thread_seconds() - start));
    }
    return best;
  }
};

inline std::vector<Isa> isas() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16") &&
                          __builtin_cpu_supports("avx512vnni") &&
                          __builtin_cpu_supports("avx512vbmi");
  return {{"baseline", true, cpu::baseline::kernel_table(), chains_baseline},
          {"avx2", avx2, cpu::avx2::kernel_table(), chains_avx2},
          {"avx512", avx512, cpu::avx512::kernel_table(), chains_avx512},
          {"avx512bf16", avx512bf16, cpu::avx512bf16::kernel_table(), chains_avx512}};
}

// A 64-byte aligned array of numbers within [-1, 1].
class Array {
 public:
  explicit Array(int64_t n) : size_(n) {
    data_ = static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(n * 4 + 63) / 64 * 64));
    uint32_t state = 12345;
    for (int64_t i = 0; i < n; ++i) {
      state = state * 1664525 + 1013904223;
      data_[i] = static_cast<float>(state >> 8) / 8388608.0F - 1.0F;
    }
  }
  Array(Array&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { std::free(data_); }
  float* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  float* data_;
  int64_t size_;
};

// Threads that wait for the next command, spinning.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }
  ~Team() {
    stop_ = true;
    ++round_;
    for (std::thread& t : workers_) t.join();
  }
  int size() const { return threads_; }

  void run(const cpu::KernelEntry& kernel, cpu::KernelCall call, int64_t tasks, void** scratch) {
    kernel_ = &kernel;
    call_ = call;
    scratch_ = scratch;
    tasks_ = tasks;
    next_ = 0;
    if (tasks > 1 && threads_ > 1) {
      busy_ = threads_ - 1;
      ++round_;
      claim(0);
      while (busy_.load() != 0) {
      }
    } else {
      claim(0);
    }
  }

 private:
  void claim(int worker) {
    cpu::KernelCall call = call_;
    call.scratch = scratch_[worker];
    for (int64_t i = next_++; i < tasks_; i = next_++) {
      call.begin = i;
      call.end = i + 1;
      kernel_->run(call);
    }
  }
  void work(int worker) {
    for (int seen = 0; !stop_;) {
      while (round_.load() == seen) {
      }
      seen = round_;
      if (stop_) return;
      claim(worker);
      --busy_;
    }
  }

  int threads_;
  std::vector<std::thread> workers_;
  std::atomic<bool> stop_{false};
  std::atomic<int> round_{0}, busy_{0};
  std::atomic<int64_t> next_{0};
  const cpu::KernelEntry* kernel_ = nullptr;
  cpu::KernelCall call_{};
  int64_t tasks_ = 0;
  void** scratch_ = nullptr;
};

// One command: a kernel, its parameters (kept by the caller) and operands.
struct Command {
  const cpu::KernelEntry* kernel;
  const void* params;
  std::vector<void*> operands;
  double flops;
  double best[2] = {1e9, 1e9};  // seconds with one thread, with all
  int64_t tasks = 0, scratch = 0;

  void prepare() {
    std::vector<int64_t> extents(operands.size(), int64_t{1} << 40), before(operands.size());
    if (const char* why = kernel->check({params, extents, before})) {
      std::fprintf(stderr, "%s: %s\n", kernel->name, why);
      std::exit(1);
    }
    tasks = kernel->tasks(params, 2);
    scratch = kernel->scratch(params);
  }
};

inline constexpr int64_t kReadTask = int64_t{1} << 16, kReadTasks = 400;

// A kernel that only reads: what memory can deliver to these threads.
using Integers = int64_t __attribute__((vector_size(64), may_alias));

inline void read(const cpu::KernelCall& call) {
  Integers sums[8] = {};
  const auto* from = static_cast<const Integers*>(call.operands[0]) + call.begin * kReadTask / 64;
  for (int64_t i = 0; i < (call.end - call.begin) * kReadTask / 64; i += 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sums[j] += from[i + j];
  }
  for (int j = 1; j < 8; ++j) sums[0] += sums[j];
  volatile int64_t keep = sums[0][0];
  (void)keep;
}

inline const cpu::KernelEntry kRead = {
    "read",
    "",
    0,
    read,
    [](const cpu::KernelCheck&) -> const char* { return nullptr; },
    [](const void*, int64_t) { return kReadTasks; },
    [](const void*) -> int64_t { return 0; }};

// Runs the commands one after another, `passes` times, with one thread and with `threads`; keeps
// each command's best time. What the caches hold is what the commands before left there. Returns
// the best multiply-add rate of a core, sampled between the passes: clocks drift.
inline double measure(const Isa& isa, std::vector<Command>& commands, int passes, int threads) {
  double peak = 0;
  int64_t bytes = 64;
  for (Command& c : commands) {
    c.prepare();
    bytes = std::max(bytes, (c.scratch + 63) / 64 * 64);
  }
  std::vector<void*> scratch;
  for (int i = 0; i < threads; ++i) {
    scratch.push_back(std::aligned_alloc(64, static_cast<size_t>(bytes)));
  }
  for (int several = 0; several < (threads > 1 ? 2 : 1); ++several) {
    Team team(several ? threads : 1);
    for (int pass = 0; pass < passes; ++pass) {
      peak = std::max(peak, isa.peak());
      for (Command& c : commands) {
        const auto clock = several ? wall_seconds : thread_seconds;
        const double start = clock();
        team.run(*c.kernel, {c.params, c.operands.data(), 0, 0, nullptr, nullptr}, c.tasks,
                 scratch.data());
        c.best[several] = std::min(c.best[several], clock() - start);
      }
    }
  }
  for (void* s : scratch) std::free(s);
  return peak;
}

}  // namespace npusim::bench
