// Prints how fast this machine reads memory: GB/s of summing a buffer far larger than any cache,
// with one thread and with as many as the first argument says. The best of several passes.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr size_t kWords = size_t{1} << 27;  // of 8 bytes
constexpr int kPasses = 9;

uint64_t sum(const uint64_t* from, size_t count) {
  uint64_t sums[16] = {};
  for (size_t i = 0; i < count; i += 16) {
    for (size_t j = 0; j < 16; ++j) sums[j] += from[i + j];
  }
  uint64_t all = 0;
  for (const uint64_t s : sums) all += s;
  return all;
}

double best_rate(const uint64_t* data, int threads, uint64_t& sink) {
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<std::thread> workers;
    std::vector<uint64_t> sums(static_cast<size_t>(threads));
    const size_t part = kWords / static_cast<size_t>(threads) / 16 * 16;
    const auto start = std::chrono::steady_clock::now();
    for (size_t t = 0; t < sums.size(); ++t) {
      workers.emplace_back([&, t] { sums[t] = sum(data + t * part, part); });
    }
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(part * sums.size() * 8) / took.count());
    for (const uint64_t s : sums) sink += s;
  }
  return best / 1e9;
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::max(1, std::atoi(arguments[1])) : 2;
  const auto data = std::make_unique<uint64_t[]>(kWords);
  for (size_t i = 0; i < kWords; ++i) data[i] = i;
  uint64_t sink = 0;
  std::printf("{\"one_thread\": %.2f, \"all_threads\": %.2f, \"threads\": %d}\n",
              best_rate(data.get(), 1, sink), best_rate(data.get(), threads, sink), threads);
  return sink == 1;
}
