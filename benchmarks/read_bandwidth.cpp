// Prints how fast this machine reads memory: GB/s of summing a buffer far larger than any cache,
// with one thread and with as many as the first argument says. The best of several passes.
// With more arguments, the same of buffers of so many KiB that are summed again and again, which
// all threads have a part of each: the rates of the caches. The median of several passes.
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

// GB/s of each pass over so many words, in order.
std::vector<double> rates(const uint64_t* data, size_t words, size_t rounds, int threads,
                          uint64_t& sink) {
  std::vector<double> found;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<std::thread> workers;
    std::vector<uint64_t> sums(static_cast<size_t>(threads));
    const size_t part = words / static_cast<size_t>(threads) / 16 * 16;
    const auto start = std::chrono::steady_clock::now();
    for (size_t t = 0; t < sums.size(); ++t) {
      workers.emplace_back([&, t] {
        for (size_t round = 0; round < rounds; ++round) {
          asm volatile("" ::: "memory");  // not to be done once for all rounds
          sums[t] += sum(data + t * part, part);
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double bytes = static_cast<double>(8 * part * sums.size() * rounds);
    found.push_back(1e-9 * bytes / took.count());
    for (const uint64_t s : sums) sink += s;
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::max(1, std::atoi(arguments[1])) : 2;
  const auto data = std::make_unique<uint64_t[]>(kWords);
  for (size_t i = 0; i < kWords; ++i) data[i] = i;
  uint64_t sink = 0;
  if (count <= 2) {
    const double one = rates(data.get(), kWords, 1, 1, sink).back();
    const double all = rates(data.get(), kWords, 1, threads, sink).back();
    std::printf("{\"one_thread\": %.2f, \"all_threads\": %.2f, \"threads\": %d}\n", one, all,
                threads);
  }
  for (int i = 2; i < count; ++i) {
    const size_t kib = std::max(1ul, std::strtoul(arguments[i], nullptr, 10));
    const size_t words = std::min(kib * 128, kWords);
    const size_t rounds = std::max<size_t>(2, kWords / words);
    const double rate = rates(data.get(), words, rounds, threads, sink)[kPasses / 2];
    std::printf("%zu KiB: %.1f GB/s\n", kib, rate);
  }
  return sink == 1;
}
