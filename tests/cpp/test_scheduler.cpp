// The schedule of one step, the queue of those that wait, and how many tokens of prompts a step
// has.
#include "cpp/serve/scheduler.h"

#include <limits>
#include <vector>

#include "cpp/serve/pace.h"
#include "cpp/serve/waiting_queue.h"
#include "tests/cpp/check.h"

namespace npusim::tests {
namespace {

using namespace npusim::serve;

class FixedView : public SchedulerView {
 public:
  std::vector<int64_t> freed;  // by each running request
  std::vector<WaitingLoad> queue;

  int64_t freed_from(size_t running) const override {
    int64_t sum = 0;
    for (size_t i = running; i < freed.size(); ++i) sum += freed[i];
    return sum;
  }
  std::optional<WaitingLoad> waiting(size_t place) const override {
    if (place >= queue.size()) return std::nullopt;
    return queue[place];
  }
};

constexpr StepLimits kLimits{.page_tokens = 4,
                             .step_tokens = 16,
                             .prompt_tokens = 16,
                             .least_prompt_tokens = 4,
                             .requests = 4};

RunningLoad generating(int64_t known, int64_t most = 100) {
  return {.known = known, .scheduled = known - 1, .most = most, .pages = pages_of(known - 1, 4)};
}
RunningLoad prompt(int64_t known, int64_t scheduled) {
  return {.known = known, .scheduled = scheduled, .most = 100, .pages = pages_of(known, 4)};
}

std::vector<std::pair<size_t, int64_t>> shares_of(const Schedule& made) {
  std::vector<std::pair<size_t, int64_t>> shares;
  for (const Share& share : made.shares) shares.emplace_back(share.request, share.tokens);
  return shares;
}
using Shares = std::vector<std::pair<size_t, int64_t>>;

void gives_rows_to_those_that_generate_first() {
  FixedView view;
  const std::vector<RunningLoad> running = {prompt(40, 0), generating(7), generating(9)};
  const Schedule made = schedule(running, 100, view, kLimits);
  check(shares_of(made) == Shares{{1, 1}, {2, 1}, {0, 12}}, "a row each, then the prompt");
  StepLimits slow = kLimits;
  slow.prompt_tokens = 5;
  check(shares_of(schedule(running, 100, view, slow)) == Shares{{1, 1}, {2, 1}, {0, 4}},
        "prompts have their own bound");
}

void ends_chunks_with_pages() {
  FixedView view;
  StepLimits limits = kLimits;
  limits.step_tokens = limits.prompt_tokens = 7;
  const auto chunk = [&](int64_t known, int64_t scheduled) {
    const std::vector<RunningLoad> one = {prompt(known, scheduled)};
    return schedule(one, 100, view, limits).shares.at(0).tokens;
  };
  check(chunk(40, 0) == 4, "a page");
  check(chunk(40, 2) == 6, "to the end of the second page");
  check(chunk(7, 0) == 7, "all of it, where it fits");
  limits.prompt_tokens = 1;
  check(chunk(40, 0) == 1, "one at the least");
  limits.prompt_tokens = 3;
  check(chunk(40, 2) == 3 && chunk(40, 3) == 3, "as many as may be, where that is no page");
}

void puts_back_the_last() {
  FixedView view;
  view.freed = {1, 2, 1};
  const std::vector<RunningLoad> running = {generating(5), generating(5), generating(6)};
  const Schedule made = schedule(running, 0, view, kLimits);
  check(made.preempted == 2, "two of three");
  check(shares_of(made) == Shares{{0, 1}},
        "the page of the last serves the first; the second has none");
}

void puts_back_itself_where_it_is_the_last() {
  FixedView view;
  view.freed = {2, 2};
  const std::vector<RunningLoad> running = {generating(7), generating(9)};
  const Schedule made = schedule(running, 0, view, kLimits);
  check(made.preempted == 1 && shares_of(made) == Shares{{0, 1}}, "the second waits");
}

void leaves_those_alone_that_are_held() {
  FixedView view;
  std::vector<RunningLoad> running = {generating(7), prompt(9, 0)};
  running[0].is_held = running[1].is_held = true;
  check(schedule(running, 100, view, kLimits).shares.empty(), "nothing to do");
}

void admits_in_order_and_with_a_reserve() {
  FixedView view;
  view.queue = {{.known = 4, .most = 100}, {.known = 8, .most = 100}, {.known = 1, .most = 100}};
  const Schedule all = schedule({}, 1000, view, kLimits);
  check(all.admitted == 3 && shares_of(all) == Shares{{0, 4}, {1, 8}, {2, 1}}, "all fit");
  view.queue[1].known = 2000;
  view.queue[1].most = 3000;
  const Schedule made = schedule({}, 100, view, kLimits);
  check(made.admitted == 1, "nobody overtakes one that does not fit");
  view.queue = {{.known = 40, .most = 40}};
  check(schedule({}, 10, view, kLimits).admitted == 1, "a lone one is admitted where it fits");
  check(schedule({}, 9, view, kLimits).admitted == 0, "and not where it does not");
  const std::vector<RunningLoad> running = {generating(5, 40)};
  check(schedule(running, 18, view, kLimits).admitted == 1, "both can go on to their ends");
  check(schedule(running, 17, view, kLimits).admitted == 0, "the other one could not");
}

void counts_pages_that_are_there() {
  FixedView view;
  view.queue = {{.known = 40, .most = 40, .cached_pages = 5, .shared_pages = 3}};
  const Schedule made = schedule({}, 7, view, kLimits);
  check(made.admitted == 1 && shares_of(made) == Shares{{0, 16}}, "of 20 tokens, 16 are in order");
  check(schedule({}, 6, view, kLimits).admitted == 0, "kept pages are taken from the free ones");
}

// Scores of each token take an entry each, and leave one to everybody else.
void leaves_entries_to_the_others() {
  FixedView view;
  StepLimits limits = kLimits;
  limits.entries = 6;
  limits.scored_tokens = 5;
  std::vector<RunningLoad> running = {prompt(40, 0), generating(7), prompt(9, 0)};
  running[0].scores_all = true;
  check(shares_of(schedule(running, 100, view, limits)) == Shares{{1, 1}, {0, 4}, {2, 9}},
        "six entries: one, four, one");
  running.pop_back();
  check(shares_of(schedule(running, 100, view, limits)) == Shares{{1, 1}, {0, 4}},
        "no more than a page of the five");
  limits.entries = 3;
  view.queue = {{.known = 1, .most = 2}, {.known = 1, .most = 2}};
  check(schedule(running, 100, view, limits).admitted == 0, "nobody without an entry");
  running[0].scores_all = false;
  check(schedule(running, 100, view, limits).admitted == 1, "and one with the last of them");
  view.queue = {{.known = 30, .most = 30, .scores_all = true}, {.known = 1, .most = 2}};
  const Schedule made = schedule({}, 100, view, limits);
  check(made.admitted == 1 && shares_of(made) == Shares{{0, 3}}, "of those that come, too");
}

void admits_no_more_than_may_run() {
  FixedView view;
  view.queue.assign(10, {.known = 1, .most = 2});
  check(schedule({}, 100, view, kLimits).admitted == 4, "four may run");
  view.queue.assign(10, {.known = 9, .most = 10});
  check(schedule({}, 100, view, kLimits).admitted == 3, "and no more than the step has tokens for");
}

std::vector<RequestId> order_of(const WaitingQueue& queue) {
  std::vector<RequestId> order;
  queue.walk([&](RequestId id) { return order.push_back(id), true; });
  return order;
}

void waits_by_priority_and_age() {
  WaitingQueue queue(2);
  queue.add({.priority = 1, .request = 1});
  queue.add({.priority = 0, .request = 3});
  queue.add({.priority = 0, .request = 2});
  check(order_of(queue) == std::vector<RequestId>{2, 3, 1}, "the smaller priority, then the older");
  queue.remove({.priority = 0, .request = 3});
  queue.remove({.priority = 0, .request = 3});
  check(!queue.admit({.priority = 0, .request = 2}), "it has not been overtaken");
  queue.add({.priority = 0, .request = 4});
  check(!queue.admit({.priority = 0, .request = 4}), "nor has this one");
  queue.add({.priority = 0, .request = 5});
  check(order_of(queue) == std::vector<RequestId>{1, 5}, "two others were admitted: it is next");
  check(queue.admit({.priority = 1, .request = 1}) && queue.size() == 1,
        "as it waited long enough");
}

void paces_prompts() {
  PromptPace any(0, 4, 100);
  check(any.allowance(false) == 100 && any.allowance(true) == 100, "no bound");
  PromptPace pace(0.5, 4, 100);
  check(pace.allowance(false) == 4, "the least, while nothing is known");
  pace.note(3, false, 0.001);
  pace.note(4, false, 0);
  check(pace.allowance(false) == 4, "nothing was learned");
  pace.note(8, false, 0.1);
  check(pace.allowance(false) == 40, "80 tokens a second");
  pace.note(8, false, 100);
  check(pace.allowance(false) == 39, "a slow step is not the measure");
  pace.note(100, false, 0.0001);
  check(pace.allowance(false) == 100, "the most");
}

void paces_prompts_beside_others() {
  PromptPace pace(0.5, 4, 1000);
  pace.note(80, false, 0.1);
  check(pace.allowance(true) == 400, "as alone, while no step without prompts is known");
  pace.note(0, true, 0.04);
  check(pace.allowance(true) == 24, "three quarters of such a step, at 800 tokens a second");
  check(pace.allowance(false) == 400, "nobody waits");
  pace.note(24, true, 0.064);
  check(pace.allowance(true) == 30, "1,000 a second came on top");
  pace.note(24, true, 0.16);
  check(pace.allowance(true) == 6, "far behind in a prompt they took five times as long");
  pace.note(6, true, 0.041);
  check(pace.allowance(true) == 12, "twice the rate at most, in a step");
  for (int i = 0; i < 100; ++i) pace.note(0, true, 0.08);
  check(pace.allowance(true) == 23, "others take longer by themselves");
  pace.note(0, true, 100);
  check(pace.allowance(true) <= 500, "never more than a step may last");
}

// Of requests that come all the time, each step has prompts: that there are ever more who generate
// is no reason for fewer tokens of prompts.
void paces_prompts_that_never_pause() {
  constexpr double kRate = 60'000, kAlone = 0.0015, kMany = 0.0025;
  PromptPace pace(0.5, 4, 1000);
  pace.note(1000, false, 1000 / kRate);
  pace.note(0, true, kAlone);
  int64_t steps = 0, tokens = 0, single = 0;
  for (; steps < 1000; ++steps) {
    const int64_t now = pace.allowance(true);
    pace.note(now > 1 ? now : 0, true, kMany + static_cast<double>(now) / kRate);
    tokens += steps >= 500 ? now : 0;
    single += now == 1 ? 1 : 0;
  }
  const double mean = static_cast<double>(tokens) / 500;
  check(mean > 90 && mean < 115, "three quarters of a step of many: 112 tokens");
  check(single > 0 && single < 30, "few steps wait");
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  gives_rows_to_those_that_generate_first();
  ends_chunks_with_pages();
  puts_back_the_last();
  puts_back_itself_where_it_is_the_last();
  leaves_those_alone_that_are_held();
  admits_in_order_and_with_a_reserve();
  counts_pages_that_are_there();
  leaves_entries_to_the_others();
  admits_no_more_than_may_run();
  waits_by_priority_and_age();
  paces_prompts();
  paces_prompts_beside_others();
  paces_prompts_that_never_pause();
  return exit_code();
}
