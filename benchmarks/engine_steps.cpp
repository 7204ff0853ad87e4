// What a step of the engine costs its thread: planning, tables, tokens and events, over a runner
// that computes nothing. engine_steps.py builds it and says what the columns are.
//
//   engine_steps REQUESTS VOCABULARY TEMPERATURE STEPS     prints JSON
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cpp/serve/batch.h"

namespace {

using namespace npusim::serve;

constexpr int64_t kPrompt = 1024, kAnswer = 4096;

class IdleRunner : public StepRunner {
 public:
  IdleRunner(int64_t requests, int64_t vocabulary) : scores_(requests * vocabulary) {
    npusim::RandomBits bits(1);
    for (float& score : scores_) score = static_cast<float>(bits.unit());
    facts_ = {.vocab_size = vocabulary,
              .max_context = 32'768,
              .page_tokens = 64,
              .pages = requests * 80,
              .max_step_tokens = 2'048,
              .max_requests = requests,
              .eos_tokens = {},
              .is_asynchronous = false};
  }
  RunnerFacts facts() const override { return facts_; }
  void start(const StepPlan&) override {}
  std::span<const float> finish() override { return scores_; }

 private:
  RunnerFacts facts_;
  std::vector<float> scores_;
};

double seconds_of(Batch& batch) {
  using Clock = std::chrono::steady_clock;
  const auto before = Clock::now();
  batch.step();
  const std::vector<Event> events = batch.take_events();
  const std::chrono::duration<double> took = Clock::now() - before;
  return events.empty() ? -1 : took.count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int64_t requests = std::atoll(argv[1]), vocabulary = std::atoll(argv[2]);
  Batch batch(std::make_shared<IdleRunner>(requests, vocabulary), {});
  RequestOptions options;
  options.max_tokens = kAnswer;
  options.sampling.temperature = std::atof(argv[3]);
  for (int64_t i = 0; i < requests; ++i) {
    std::vector<int64_t> prompt(kPrompt);
    for (int64_t t = 0; t < kPrompt; ++t) prompt[t] = (i * 31 + t) % vocabulary;
    batch.submit(static_cast<RequestId>(i + 1), std::move(prompt), options);
  }
  while (batch.stats().generated_tokens < requests || batch.stats().waiting > 0) {
    batch.step();
    batch.take_events();
  }
  std::vector<double> seconds;
  for (int64_t i = std::atoll(argv[4]); i > 0; --i) {
    if (const double took = seconds_of(batch); took > 0) seconds.push_back(took);
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("{\"requests\": %lld, \"running\": %lld, \"median_us\": %.2f, \"p99_us\": %.2f}\n",
              static_cast<long long>(requests), static_cast<long long>(batch.stats().running),
              1e6 * seconds[seconds.size() / 2], 1e6 * seconds[seconds.size() * 99 / 100]);
}
