// Steps of a program over pages, on devices that compute at once and on one that computes when it
// is waited for. After tokens comes their sum, modulo 48 (tests/serve/paged_model.py).
#include "cpp/serve/paged_model.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpp/serve/batch.h"
#include "tests/cpp/check.h"
#include "tests/cpp/queue_device.h"
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

// Runs of cells as they are sent: the first of each, and how many.
using Runs = std::vector<std::pair<int64_t, size_t>>;

// A table of a step: its number, and its pages.
struct Given {
  uint64_t number;
  std::vector<Page> pages;
};

// What a device has of 40 tables of three cells; two cells between two that changed go along.
class Tables {
 public:
  void put(const std::vector<Given>& given) {
    runs.clear();
    tables_.begin();
    for (size_t i = given.size(); i > 0; --i) {  // in any order
      tables_.put(static_cast<int64_t>(i - 1), given[i - 1].number, given[i - 1].pages);
    }
  }
  void send() {
    tables_.send([&](int64_t first, std::span<const int64_t> sent) {
      runs.emplace_back(first, sent.size());
      std::ranges::copy(sent, there.begin() + first);
    });
  }
  void forget() { tables_.forget(); }
  void lose() {
    try {
      tables_.send([](int64_t, std::span<const int64_t>) { throw std::runtime_error("lost"); });
    } catch (const std::runtime_error&) {
    }
  }

  Runs runs;
  std::vector<int64_t> there = std::vector<int64_t>(120, 99);

 private:
  StepTables tables_{40, 3, 2};
};

void sends_tables_that_changed() {
  Tables tables;
  std::vector<Given> given;
  for (uint64_t i = 1; i <= 40; ++i) given.push_back({i, {1, 2}});
  const auto step = [&] {
    tables.put(given);
    tables.send();
  };
  step();
  check(tables.runs == Runs{{0, 120}} && tables.there[117] == 1 && tables.there[119] == kNoPage,
        "all at first");
  step();
  check(tables.runs.empty(), "nothing is new");
  given[3].pages = {1, 2, 7};
  given[5] = {50, {1}};
  given[30] = {51, {}};
  step();
  check(tables.runs == Runs{{11, 1}, {15, 3}, {90, 3}}, "new pages, and tables of others");
  check(tables.there[11] == 7 && tables.there[15] == 1 && tables.there[16] == kNoPage &&
            tables.there[90] == kNoPage,
        "as they were put");
  given[3].pages = {1, 2};
  step();
  check(tables.runs.empty(), "what the device has of a table may be more");
}

void sends_what_lies_between_and_what_was_lost() {
  Tables tables;
  std::vector<Given> given(6, {0, {1, 2}});
  const auto step = [&] {
    tables.put(given);
    tables.send();
  };
  for (uint64_t i = 0; i < 6; ++i) given[i].number = i + 1;
  step();
  given[1].pages = given[2].pages = {1, 2, 3};
  step();
  check(tables.runs == Runs{{5, 4}} && tables.there[6] == 1 && tables.there[8] == 3,
        "those near each other go together");
  given.resize(1);
  given[0] = {7, {4, 5, 6, 7}};
  step();
  check(tables.runs == Runs{{0, 3}} && tables.there[2] == 6 && tables.there[3] == 1,
        "as many as a table names");
  given[0] = {8, {2, 1}};
  tables.put(given);
  tables.lose();
  step();
  check(tables.runs == Runs{{0, 3}} && tables.there[0] == 2, "what was lost is sent again");
  tables.forget();
  step();
  check(tables.runs == Runs{{0, 3}}, "so is what nobody knows of");
  given[0].number = 0;
  step();
  step();
  check(tables.runs == Runs{{0, 3}}, "a table without a number may be another each time");
}

void keeps_entries_of_requests() {
  StepEntries entries(8);
  std::vector<int64_t> made;
  const auto step = [&](const std::vector<int64_t>& slots, int64_t room) {
    entries.begin(slots, room, made);
    return made;
  };
  using Entries = std::vector<int64_t>;
  check(step({5, 6, 7, 0}, 8) == Entries{0, 1, 2, 3}, "the lowest at first");
  check(step({0, 7, 5}, 8) == Entries{3, 2, 0}, "everybody keeps its own, whoever has gone");
  check(step({1, 0, 7, 5}, 8) == Entries{1, 3, 2, 0}, "who comes takes what is left");
  check(step({1, 0}, 2) == Entries{1, 0}, "and moves where the step has no room");
  check(step({0, 5}, 2) == Entries{0, 1} && step({5, 7}, 3) == Entries{1, 2},
        "what another one has had since is its own");
  check(step({5, 7}, 4) == Entries{1, 2} && entries.take() == 0 && entries.take() == 3,
        "more of a request take what is left");
  check(step({3, 7, 5}, 4) == Entries{0, 2, 1}, "and are nobody's afterwards");
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

// Answers to one prompt, which ends inside of a page: it is computed once, and what the page holds
// is copied behind the step that wrote it.
void copies_the_page_in_which_a_prompt_ends(const std::shared_ptr<Device>& device, bool copies) {
  const auto model = std::make_shared<PagedModel>(paged_sum(), device, nullptr);
  check(model->facts().copies_pages == copies, "whether a copy waits");
  Batch batch(model, {});
  const auto length = static_cast<size_t>(model->facts().page_tokens) * 2 - 1;
  const Tokens prompt(length, 7);
  std::vector<Tokens> made(5);
  RequestOptions options;
  options.ignore_eos = true;
  options.max_tokens = 9;
  for (RequestId id = 1; id <= made.size(); ++id) {
    batch.submit(id, prompt, options);
    options.follows = 1;
  }
  while (batch.step()) {
    for (const Event& event : batch.take_events()) {
      check(!event.error, event.error ? event.error->what() : "");
      Tokens& to = made[event.request - 1];
      to.insert(to.end(), event.tokens.begin(), event.tokens.end());
    }
  }
  for (const Tokens& tokens : made) check(tokens == sums(prompt, 9), "the sums of each");
  const auto rows = static_cast<int64_t>(length);
  const int64_t again = copies ? 1 : rows - model->facts().page_tokens;
  check(batch.stats().prompt_tokens == rows + 4 * again, "what was not copied is computed anew");
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
  sends_tables_that_changed();
  sends_what_lies_between_and_what_was_lost();
  keeps_entries_of_requests();
  serves(cpu(), false);
  serves(std::make_shared<UnifiedDevice>(cpu(), UnifiedDevice::Options{}), true);
  serves(std::make_shared<QueueDevice>(), true);
  copies_the_page_in_which_a_prompt_ends(cpu(), true);
  copies_the_page_in_which_a_prompt_ends(std::make_shared<QueueDevice>(), true);
  copies_the_page_in_which_a_prompt_ends(
      std::make_shared<UnifiedDevice>(cpu(), UnifiedDevice::Options{}), false);
  refuses_pages_that_are_not_there();
  return exit_code();
}
