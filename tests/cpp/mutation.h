// Parameters as a hostile file would have them: sound ones with a few fields overwritten. check()
// must refuse them, or running them must stay inside operands of exactly the stated size; the
// sanitizer build watches. Fields are 8-byte words, or halves of one: every type of abi.h.
#pragma once

#include "tests/cpp/kernel_call.h"

namespace npusim::cpu {

class CountedFailures final : public Failure {
 public:
  void report(const char*, int64_t, int64_t) noexcept override { ++count; }
  int count = 0;
};

template <typename Params>
void mutate(Params& p, std::mt19937& random) {
  constexpr int64_t kWords[] = {0,
                                1,
                                2,
                                3,
                                5,
                                8,
                                16,
                                64,
                                -1,
                                -2,
                                -16,
                                1 << 20,
                                INT32_MAX,
                                INT32_MIN,
                                int64_t{1} << 31,
                                int64_t{1} << 32,
                                int64_t{1} << 40,
                                int64_t{1} << 62,
                                INT64_MAX,
                                INT64_MIN};
  auto* bytes = reinterpret_cast<std::byte*>(&p);
  for (uint32_t n = 1 + random() % 3; n > 0; --n) {
    const int64_t word = kWords[random() % std::size(kWords)];
    const auto half = static_cast<int32_t>(word);
    const size_t at = random() % (sizeof(Params) / 4) * 4;
    if (at % 8 == 0 && random() % 3) {
      std::memcpy(bytes + at, &word, 8);
    } else {
      std::memcpy(bytes + at, &half, 4);
    }
  }
}

// Runs the tasks of accepted parameters, as many as a test has time for; returns the failures that
// the kernel reported.
template <typename Params>
int run_accepted(const KernelEntry& kernel, const Params& p, std::vector<Operand>& operands) {
  constexpr int64_t kMostScratch = int64_t{1} << 26, kMostTasks = 4;
  const int64_t bytes = kernel.scratch(&p), tasks = kernel.tasks(&p, 2);
  expect(bytes >= 0 && tasks >= 0, kernel.name, "a negative count of tasks or of scratch bytes");
  if (bytes > kMostScratch) return 0;
  const std::vector<std::byte> pattern(static_cast<size_t>(bytes), std::byte{0xFF});
  void* scratch = bytes ? platform::take_aligned(64, (pattern.size() + 63) / 64 * 64) : nullptr;
  std::vector<void*> pointers;
  for (Operand& o : operands) pointers.push_back(o.bytes.data() + o.offset);
  CountedFailures failures;
  for (int64_t i = 0; i < std::min(tasks, kMostTasks); ++i) {
    if (scratch) std::memcpy(scratch, pattern.data(), pattern.size());
    const int64_t task = i % 2 ? tasks - 1 - i / 2 : i / 2;  // from both ends
    kernel.run({&p, pointers.data(), task, task + 1, scratch, &failures});
  }
  platform::release_aligned(scratch);
  return failures.count;
}

// `sound` is what runs with `operands`; `limit`, if given, says which accepted parameters ask for
// more work than a test can wait for.
template <typename Params, typename Limit>
void run_mutations(const KernelEntry& kernel, const Params& sound,
                   const std::vector<Operand>& operands, int rounds, std::mt19937& random,
                   Limit too_long) {
  for (int i = 0; i < rounds; ++i) {
    Params p = sound;
    mutate(p, random);
    if (!refusal(kernel, p, operands).empty() || too_long(p)) continue;
    std::vector<Operand> copies = operands;
    run_accepted(kernel, p, copies);
  }
}
template <typename Params>
void run_mutations(const KernelEntry& kernel, const Params& sound,
                   const std::vector<Operand>& operands, int rounds, std::mt19937& random) {
  run_mutations(kernel, sound, operands, rounds, random, [](const Params&) { return false; });
}

}  // namespace npusim::cpu
