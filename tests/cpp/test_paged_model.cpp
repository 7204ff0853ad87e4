// Steps of a program over pages, on devices that compute at once and on one that computes when it
// is waited for. After tokens comes their sum, modulo 48 (tests/serve/paged_model.py).
#include "cpp/serve/paged_model.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cpp/serve/batch.h"
#include "tests/cpp/check.h"
#include "tests/cpp/unified_device.h"

namespace npusim::tests {
namespace {

using namespace npusim::serve;
using Tokens = std::vector<int64_t>;

std::shared_ptr<const Program> paged_sum() {
  return Program::open(std::string(NPUSIM_SOURCE_DIR) + "/tests/cpp/programs/paged_sum.npubin");
}

std::shared_ptr<Device> cpu() {
  return open_device("cpu", {{"threads", int64_t{1}}});
}

Tokens sums(Tokens tokens, int64_t count) {
  Tokens made;
  for (int64_t i = 0; i < count; ++i) {
    made.push_back(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) % 48);
    tokens.push_back(made.back());
  }
  return made;
}

// More requests than run at a time, longer than the pages hold together, with beginnings in common.
void serves(const std::shared_ptr<Device>& device, bool is_asynchronous) {
  const auto model = std::make_shared<PagedModel>(paged_sum(), device, nullptr);
  const RunnerFacts facts = model->facts();
  check(facts.is_asynchronous == is_asynchronous && facts.pages == 24 && facts.vocab_size == 48,
        "what the program and the device say");
  Batch batch(model, {});
  std::vector<Tokens> prompts, made(12);
  RequestOptions options;
  options.ignore_eos = true;
  for (int64_t i = 0; i < 12; ++i) {
    prompts.push_back({1, 2, 3, 4, 5, 6, 7, 8, i});
    options.max_tokens = 20 + i % 12;
    batch.submit(static_cast<RequestId>(i + 1), prompts.back(), options);
  }
  while (batch.step()) {
    batch.check_invariants();
    for (const Event& event : batch.take_events()) {
      check(!event.error, event.error ? event.error->what() : "");
      Tokens& to = made[event.request - 1];
      to.insert(to.end(), event.tokens.begin(), event.tokens.end());
    }
  }
  for (int64_t i = 0; i < 12; ++i) {
    const auto at = static_cast<size_t>(i);
    check(made[at] == sums(prompts[at], 20 + i % 12), "the sums of each");
  }
  const BatchStats stats = batch.stats();
  check(stats.prefix_hits > 0 && stats.preemptions > 0, "pages were shared, and requests put back");
  check(stats.free_pages == stats.pages, "nothing is left");
}

// A table that names no page of the pool: refused by the program, and the next step runs.
void refuses_pages_that_are_not_there() {
  PagedModel model(paged_sum(), cpu(), nullptr);
  const Tokens tokens = {5};
  StepPlan plan;
  for (const Page page : {Page{24}, Page{1'000'000}}) {
    const std::vector<Page> pages = {page};
    plan.rows = {{.request = 1,
                  .slot = 0,
                  .tokens = tokens,
                  .first_position = 0,
                  .pages = pages,
                  .wants_scores = true}};
    check_refused(ErrorCode::kData, "out of", [&] {
      model.start(plan);
      model.finish();
    });
  }
  const std::vector<Page> pages = {23};
  plan.rows[0].pages = pages;
  model.start(plan);
  const std::span<const float> scores = model.finish();
  check(scores.size() == 48 && scores[5] == 0 && scores[4] == -1, "the token itself");
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  serves(cpu(), false);
  serves(std::make_shared<UnifiedDevice>(cpu(), UnifiedDevice::Options{}), true);
  refuses_pages_that_are_not_there();
  return exit_code();
}
