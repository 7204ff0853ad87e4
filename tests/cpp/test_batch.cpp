// Single requests through the batch: what is refused, what ends, what is told.
#include "cpp/serve/batch.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "tests/cpp/check.h"
#include "tests/cpp/hash_runner.h"

namespace npusim::tests {
namespace {

using namespace npusim::serve;
using Tokens = std::vector<int64_t>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

RunnerFacts facts_of_tests() {
  return {.vocab_size = 24,
          .max_context = 32,
          .page_tokens = 4,
          .pages = 8,
          .max_step_tokens = 16,
          .max_requests = 4,
          .eos_tokens = {3, 99},
          .is_asynchronous = false};
}

struct Served {
  explicit Served(RunnerFacts facts = facts_of_tests(), const BatchOptions& options = {})
      : runner(std::make_shared<HashRunner>(facts)), batch(runner, options) {}

  // Steps until nothing is left to do, or so often.
  std::vector<Event> run(int most = 1000) {
    std::vector<Event> all;
    while (most-- > 0 && batch.step()) {
      batch.check_invariants();
      for (Event& event : batch.take_events()) all.push_back(std::move(event));
    }
    return all;
  }

  std::shared_ptr<HashRunner> runner;
  Batch batch;
};

RequestOptions asking(int64_t max_tokens) {
  RequestOptions options;
  options.max_tokens = max_tokens;
  options.ignore_eos = true;
  return options;
}

Tokens tokens_of(const std::vector<Event>& events, RequestId id) {
  Tokens tokens;
  for (const Event& event : events) {
    if (event.request == id) tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  return tokens;
}

void refuses_what_can_never_be_served() {
  const Served served;
  const auto refused = [&](std::string_view words, const Tokens& tokens,
                           const RequestOptions& options) {
    check_refused(ErrorCode::kLimit, words, [&] { served.batch.check(tokens, options); });
  };
  refused("it has no tokens", {}, asking(1));
  refused("token 24 is outside the vocabulary, 0 to 23", {1, 24}, asking(1));
  refused("token -1", {-1}, asking(1));
  refused("max_tokens is -2", {1}, asking(-2));
  refused("the context holds 32", {1}, asking(32));
  refused("the context holds 32", {1}, asking(std::numeric_limits<int64_t>::max()));
  refused("the context holds 32", Tokens(32, 1), asking(-1));
  refused("the context holds 32", Tokens(33, 1), asking(0));
  served.batch.check(Tokens(32, 1), asking(0));
  served.batch.check(Tokens{1}, asking(31));
  RequestOptions options = asking(1);
  options.min_tokens = -1;
  options.stop_tokens = {24};
  options.logprobs = 25;
  options.presence_penalty = kNan;
  options.logit_bias = {{-1, 0.0f}, {0, INFINITY}};
  for (const char* words : {"min_tokens is -1", "stop token 24", "logprobs", "presence_penalty",
                            "of a bias, -1", "bias of token 0"}) {
    refused(words, {1}, options);
  }
  options = asking(1);
  options.sampling.temperature = -1;
  refused("temperature", {1}, options);
}

void refuses_what_the_pages_cannot_hold() {
  RunnerFacts facts = facts_of_tests();
  facts.pages = 2;
  const Served served(facts);
  check_refused(ErrorCode::kLimit, "the pages hold 8",
                [&] { served.batch.check(Tokens(9, 1), asking(0)); });
  check_refused(ErrorCode::kLimit, "the pages hold 8",
                [&] { served.batch.check(Tokens(5, 1), asking(5)); });
  served.batch.check(Tokens(8, 1), asking(1));  // the last token needs no room
  Served whole(facts);
  whole.batch.submit(1, Tokens(3, 1), asking(-1));
  check(tokens_of(whole.run(), 1).size() == 6, "as many as the pages hold, and one");
}

void refuses_options_out_of_range() {
  const auto refused = [](std::string_view words, const BatchOptions& options) {
    check_refused(ErrorCode::kLimit, words,
                  [&] { const Served served(facts_of_tests(), options); });
  };
  refused("max_requests is -1; it must be 1 or more", {.max_requests = -1});
  refused("max_step_tokens is -1", {.max_step_tokens = -1});
  refused("step_seconds", {.step_seconds = kNan});
  refused("patience", {.patience = -1});
  RunnerFacts facts = facts_of_tests();
  facts.pages = 0;
  check_refused(ErrorCode::kLimit, "0 pages", [&] { const Served served(facts); });
  facts.page_tokens = 0;
  check_refused(ErrorCode::kLimit, "without tokens", [&] { const Served served(facts); });
  const Served served(facts_of_tests(), {.max_step_tokens = 2});
  check(served.batch.max_requests() == 2, "a row each, in every step");
  const Served many(facts_of_tests(), {.max_requests = 5, .max_step_tokens = 1000});
  check(many.batch.max_requests() == 4, "as many as the runner takes");
}

void ends_for_the_reason_there_is() {
  Served served;
  served.batch.submit(1, {1, 2, 3}, asking(5));
  std::vector<Event> events = served.run();
  const Tokens made = tokens_of(events, 1);
  check(made.size() == 5 && events.back().ending == Ending::kLength, "all five");
  RequestOptions stops = asking(5);
  stops.stop_tokens = {made[2]};
  served.batch.submit(2, {1, 2, 3}, stops);
  events = served.run();
  const bool is_first = std::ranges::find(made, made[2]) == made.begin() + 2;
  check(!is_first || tokens_of(events, 2) == Tokens(made.begin(), made.begin() + 3),
        "up to the stop token, with it");
  check(events.back().ending == Ending::kStop, "it stopped");
  stops.min_tokens = 5;
  served.batch.submit(3, {1, 2, 3}, stops);
  events = served.run();
  check(tokens_of(events, 3).size() == 5, "not before min_tokens");
  served.batch.submit(4, {1, 2, 3}, asking(0));
  events = served.run();
  check(events.size() == 1 && events[0].tokens.empty() && events[0].ending == Ending::kLength,
        "nothing was asked for");
}

void tells_log_probabilities() {
  Served served;
  RequestOptions options = asking(2);
  options.logprobs = 2;
  options.prompt_logprobs = 1;
  options.logit_bias = {{7, 100.0f}};
  served.batch.submit(1, {4, 5, 6, 4, 5}, options);
  const std::vector<Event> events = served.run();
  check(tokens_of(events, 1) == Tokens{7, 7}, "the bias decides");
  const Event& first = events.front();
  check(first.prompt_logprobs && first.prompt_logprobs->size() == 4, "of the prompt but its first");
  std::vector<float> scores(24);
  uint64_t hash = 0;
  for (const int64_t token : {4, 5, 6, 4}) {
    const size_t place = hash == 0 ? 0 : 1;
    hash = hash_behind(hash, token);
    if (place == 0) {
      scores_of_hash(hash, scores);
      check(first.prompt_logprobs->at(0).token == 5 &&
                first.prompt_logprobs->at(0).logprob == logprob_of(scores, 5, 0).logprob,
            "the model's own, of the next token");
    }
  }
  scores_of_hash(hash_behind(hash, 5), scores);
  const TokenLogprob expected = logprob_of(scores, 7, 2);
  check(first.logprobs.at(0).logprob == expected.logprob && first.logprobs[0].top == expected.top,
        "before the bias");
  check(events.size() == 2 && !events[1].prompt_logprobs, "the prompt's are told once");
}

void says_how_probable_odd_scores_are() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> scores = {1.0f, static_cast<float>(kNan), 1.0f, -kInf};
  const TokenLogprob of = logprob_of(scores, 2, 9);
  check(std::abs(of.logprob + std::log(2.0)) < 1e-15, "one of two");
  check(of.top.size() == 4 && of.top[0].first == 0 && of.top[1].first == 2 &&
            of.top[2].first == 3 && of.top[3].first == 1,
        "equal ones by number, NaN last");
  check(of.top[2].second == -HUGE_VAL && of.top[3].second == -HUGE_VAL, "never");
  const std::vector<float> infinite = {kInf, 3.0f, kInf};
  check(std::abs(logprob_of(infinite, 0, 0).logprob + std::log(2.0)) < 1e-15,
        "infinite ones share");
  check(logprob_of(infinite, 1, 0).logprob == -HUGE_VAL, "and leave nothing");
}

// A device that fails takes those that ran with it, and serves the next ones.
void goes_on_after_a_failure(bool at_start, bool is_asynchronous) {
  RunnerFacts facts = facts_of_tests();
  facts.is_asynchronous = is_asynchronous;
  Served served(facts, {.max_requests = 1});
  (at_start ? served.runner->fails_at_start : served.runner->fails_at_finish) = 3;
  served.batch.submit(1, {1, 2, 3}, asking(20));
  served.batch.submit(2, {1, 2, 3}, asking(20));
  const std::vector<Event> events = served.run();
  std::vector<Event> ends;
  for (const Event& event : events) {
    if (event.is_last()) ends.push_back(event);
  }
  check(ends.size() == 2 && ends[0].request == 1 && ends[0].error,
        "the one that ran has the error");
  check(ends[1].request == 2 && !ends[1].error, "the one that waited has its answer");
  const AloneAnswer alone = answer_alone(facts, {1, 2, 3}, asking(20), 23, {}, nullptr);
  check(tokens_of(events, 2) == alone.tokens, "which nothing of the failure reached");
  check(served.batch.failure().empty() && served.batch.stats().failed_steps == 1, "it goes on");
}

void gives_up_on_a_device_that_keeps_failing() {
  Served served(facts_of_tests(), {.max_requests = 1});
  served.runner->fails_always = true;
  served.runner->fails_at_start = 0;
  for (RequestId id = 1; id <= 5; ++id) served.batch.submit(id, {1}, asking(2));
  const std::vector<Event> events = served.run();
  check(events.size() == 5, "each has an event");
  for (const Event& event : events) check(event.error.has_value(), "which is an error");
  check(served.runner->steps() == Batch::kMostFailures, "nothing is tried for ever");
  check(served.batch.failure().find("the device has failed") != std::string::npos, "why");
  served.batch.submit(6, {1}, asking(2));
  const std::vector<Event> later = served.batch.take_events();
  check(later.size() == 1 && later[0].error, "and what comes later is refused");
  check(served.batch.is_idle(), "nothing is left");
}

// All scores of a request NaN: it alone fails.
void fails_the_one_without_a_token() {
  Served served;
  RequestOptions masked = asking(3);
  masked.masked = true;
  served.batch.submit(1, {1, 2}, masked);
  served.batch.submit(2, {1, 2}, asking(3));
  served.batch.allow(1, {0});
  const std::vector<Event> events = served.run();
  check(tokens_of(events, 2).size() == 3, "the other one has its tokens");
  const auto failed =
      std::ranges::find_if(events, [](const Event& e) { return e.error.has_value(); });
  check(failed != events.end() && failed->request == 1 && failed->error->code() == ErrorCode::kData,
        "no token may come");
}

void waits_for_masks() {
  Served served;
  RequestOptions masked = asking(2);
  masked.masked = true;
  served.batch.submit(1, {1, 2}, masked);
  check(served.run().empty() && served.runner->computed == 0, "nothing, before it is allowed");
  served.batch.allow(1, {1U << 9});
  std::vector<Event> events = served.run();
  check(tokens_of(events, 1) == Tokens{9} && !events.back().is_last(), "what may come");
  served.batch.allow(1, {1U << 4});
  events = served.run();
  check(tokens_of(events, 1) == Tokens{4} && events.back().is_last(), "and then the next");
  served.batch.allow(1, {1});  // it has ended
  RequestOptions free = asking(1), scored = asking(1);
  scored.logprobs = 0;
  for (const auto& [id, options] : {std::pair{2, free}, std::pair{3, scored}}) {
    served.batch.submit(static_cast<RequestId>(id), {4, 5}, options);
  }
  for (RequestId id = 2; id <= 3; ++id) served.batch.allow(id, {1U << 9});
  events = served.run();
  check(tokens_of(events, 2) != Tokens{9} && tokens_of(events, 2) == tokens_of(events, 3),
        "who waits for no mask has none");
  served.batch.allow(77, {1});
}

void computes_shared_beginnings_once() {
  Served served;
  const Tokens prompt(12, 5);
  served.batch.submit(1, prompt, asking(1));
  served.run();
  const int64_t before = served.runner->computed;
  served.batch.submit(2, prompt, asking(1));
  std::vector<Event> events = served.run();
  check(served.runner->computed - before == 4, "all but the last page");
  check(events.back().cached_tokens == 8, "and says so");
  check(served.batch.stats().prefix_hits == 8 && served.batch.stats().prefix_queries == 24,
        "counts");
  RequestOptions alone = asking(1);
  alone.prefix_cache = false;
  served.batch.submit(3, prompt, alone);
  events = served.run();
  check(events.back().cached_tokens == 0, "not where it is not wanted");
}

// Answers to one prompt: it is computed once, but for what lies behind its full pages, or for the
// last token where pages are copied.
void computes_a_prompt_once_for_those_that_follow() {
  for (int kind = 0; kind < 4; ++kind) {
    RunnerFacts facts = facts_of_tests();
    facts.is_asynchronous = kind % 2 != 0;
    facts.copies_pages = kind / 2 != 0;
    facts.max_step_tokens = 5;
    Served served(facts);
    const Tokens prompt = {9, 8, 7, 6, 5, 4, 9, 8, 7, 6};
    RequestOptions options = asking(1);
    served.batch.submit(1, prompt, options);
    options.follows = 1;
    served.batch.submit(2, prompt, options);
    options.follows = 2;  // which waits itself
    served.batch.submit(3, prompt, options);
    check(served.batch.stats().waiting == 3, "all of them wait");
    const std::vector<Event> events = served.run();
    check(served.runner->computed == (facts.copies_pages ? 10 + 1 + 1 : 10 + 2 + 2),
          "the last tokens are each one's own");
    check(tokens_of(events, 1) == tokens_of(events, 3) && tokens_of(events, 3).size() == 1,
          "the same token");
    options.follows = 4711;
    served.batch.submit(4, prompt, options);
    check(served.run().size() == 1, "one that is not there is not waited for");
  }
}

// Beginnings that end in one page at different tokens, and prompts that fill their pages: each
// takes over what it has in common, also where the first one has ended, and its page is taken anew.
void copies_what_beginnings_have_in_common() {
  const Tokens first = {9, 8, 7, 6, 5, 4, 3, 2};
  const std::vector<Tokens> others = {{9, 8, 7, 6, 5, 4, 3, 2},
                                      {9, 8, 7, 6, 5, 1},
                                      {9, 8, 7, 6, 5, 4, 3, 2, 1},
                                      {9, 8, 1, 1},
                                      {9, 8, 7, 6, 5, 4, 3},
                                      {1, 9},
                                      {9},
                                      {9, 8, 7, 6}};
  for (int kind = 0; kind < 8; ++kind) {
    RunnerFacts facts = facts_of_tests();
    facts.is_asynchronous = kind % 2 != 0;
    facts.copies_pages = true;
    facts.pages = 24;
    facts.max_requests = kind / 2 % 2 != 0 ? 2 : 9;
    Served served(facts);
    served.batch.submit(1, first, asking(kind / 4 != 0 ? 1 : 9));
    RequestOptions options = asking(6);
    options.follows = 1;
    for (size_t i = 0; i < others.size(); ++i) served.batch.submit(i + 2, others[i], options);
    const std::vector<Event> events = served.run();
    for (size_t i = 0; i < others.size(); ++i) {
      const AloneAnswer alone =
          answer_alone(facts, others[i], options, std::ssize(others[i]) + 6, {}, nullptr);
      check(tokens_of(events, i + 2) == alone.tokens, "what each makes alone");
    }
    check(facts.max_requests == 2 || served.runner->copied >= 4, "pages were copied");
  }
}

// A page that nobody holds is taken by the first that wants what it holds, and then holds more.
void copies_nothing_of_a_page_that_was_taken() {
  RunnerFacts facts = facts_of_tests();
  facts.copies_pages = true;
  facts.max_requests = 1;
  const std::vector<Tokens> prompts = {
      {9, 8, 7, 6, 5, 4, 3}, {9, 8, 7, 6, 5, 1}, {9, 8, 7, 6, 5, 4, 3}};
  Served served(facts);
  RequestOptions options = asking(1);
  for (const Tokens& prompt : prompts) {
    const auto id = static_cast<RequestId>(&prompt - prompts.data()) + 1;
    served.batch.submit(id, prompt, options);
    options.follows = 1;
  }
  const std::vector<Event> events = served.run();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const AloneAnswer alone =
        answer_alone(facts, prompts[i], options, std::ssize(prompts[i]) + 1, {}, nullptr);
    check(tokens_of(events, i + 1) == alone.tokens, "what each makes alone");
  }
  check(served.runner->computed == 7 + 1 + 3, "one took the page over, the other computed it");
}

// One that comes when the prompt has been computed takes it over as well; what a failed step has
// left is nobody's.
void copies_for_those_that_come_later() {
  RunnerFacts facts = facts_of_tests();
  facts.copies_pages = true;
  const Tokens prompt = {9, 8, 7, 6, 5, 4, 9};
  RequestOptions options = asking(2);
  options.follows = 1;
  Served served(facts);
  served.batch.submit(1, prompt, asking(9));
  served.run(3);
  served.batch.submit(2, prompt, options);
  const int64_t before = served.runner->computed;
  served.run(1);
  check(served.runner->computed == before + 2 && served.runner->copied == 1, "a row of each");
  served.run();

  Served failing(facts, {.max_requests = 2});
  failing.batch.submit(1, prompt, asking(9));
  failing.batch.submit(2, {1}, asking(9));
  failing.batch.submit(3, prompt, options);
  failing.runner->fails_at_start = 3;
  failing.run();
  check(failing.runner->copied == 0 && failing.batch.stats().failed_steps == 1,
        "the third had no place before the step that failed");
}

// Whoever is followed may go away, fail, or be put back; who follows may go away.
void follows_nobody_who_has_ended() {
  RunnerFacts facts = facts_of_tests();
  facts.max_step_tokens = 4;
  const Tokens prompt = {9, 8, 7, 6, 5, 4, 9, 8};
  RequestOptions follows = asking(1);
  follows.follows = 1;
  Served served(facts);
  served.batch.submit(1, prompt, asking(3));
  for (RequestId id = 2; id <= 4; ++id) served.batch.submit(id, prompt, follows);
  served.run(1);
  served.batch.cancel(3);
  served.batch.cancel(1);
  served.batch.check_invariants();
  const std::vector<Event> events = served.run();
  check(events.size() == 2 && events[0].is_last() && events[1].is_last(), "the two that are left");
  check(served.batch.is_idle() && served.batch.stats().waiting == 0, "nothing is left");

  Served failing(facts);
  failing.runner->fails_at_start = 1;
  failing.batch.submit(1, prompt, asking(3));
  failing.batch.submit(2, prompt, follows);
  const std::vector<Event> told = failing.run();
  check(told.size() == 2 && told[0].error && told[1].ending, "it waited, so it is served");

  Served apart(facts);
  RequestOptions other = follows;
  other.salt = "another";
  apart.batch.submit(1, prompt, asking(3));
  apart.batch.submit(2, prompt, other);
  apart.run(1);
  check(apart.runner->order == std::vector<RequestId>{1}, "the step has no more tokens");
  apart.run();
  check(apart.batch.stats().prefix_hits == 0, "nothing is shared where nothing may be");
}

// Scores of many tokens of a prompt come in one step, one entry each.
void scores_prompts_in_few_steps() {
  RunnerFacts facts = facts_of_tests();
  facts.max_requests = 6;
  facts.pages = 16;
  Served served(facts);
  RequestOptions options = asking(0);
  options.prompt_logprobs = 0;
  served.batch.submit(1, Tokens(25, 5), options);
  served.batch.submit(2, {1, 2}, asking(6));
  const std::vector<Event> events = served.run();
  for (const Event& event : events) {
    if (event.request != 1) continue;
    check(event.ending && event.prompt_logprobs->size() == 24, "all but the first");
    uint64_t hash = 0;
    std::vector<float> scores(24);
    for (const TokenLogprob& of : *event.prompt_logprobs) {
      hash = hash_behind(hash, 5);
      scores_of_hash(hash, scores);
      check(of.logprob == logprob_of(scores, 5, 0).logprob, "each behind its own token");
    }
  }
  check(served.runner->steps() <= 8, "not a step for each token");
}

// However many of smaller priority come, nobody waits for more than `patience` of them.
void lets_nobody_wait_for_ever() {
  constexpr RequestId kPatience = 3;
  Served served(facts_of_tests(), {.max_requests = 1, .patience = kPatience});
  RequestOptions late = asking(2), soon = asking(2);
  late.priority = 5;
  served.batch.submit(1, {1}, soon);
  served.batch.submit(2, {1}, late);
  RequestId latest = 2, ended_before = 0;
  for (bool has_ended = false; !has_ended && latest < 100;) {
    served.batch.submit(++latest, {1}, soon);
    for (const Event& event : served.run(1)) {
      if (!event.is_last()) continue;
      has_ended = event.request == 2;
      ended_before += has_ended ? 0 : 1;
    }
  }
  check(ended_before == 1 + kPatience, "the one that ran, and those that may overtake it");
}

// A page a token: which pages are taken says how far the plans are.
void plans_a_step_while_the_one_before_runs() {
  for (const bool is_asynchronous : {false, true}) {
    RunnerFacts facts = facts_of_tests();
    facts.page_tokens = 1;
    facts.is_asynchronous = is_asynchronous;
    Served served(facts);
    Tokens taken;
    served.runner->at_finish = [&] {
      const BatchStats stats = served.batch.stats();
      taken.push_back(stats.pages - stats.free_pages);
    };
    served.batch.submit(1, {7}, asking(5));
    served.run();
    const Tokens ahead = {2, 3, 4, 5, 5}, behind = {1, 2, 3, 4, 5};
    check(taken == (is_asynchronous ? ahead : behind), "the pages of the step that comes next");
  }
}

// Of few tokens, of many, and of none: as a vector has them.
void lists_hold_tokens() {
  for (int64_t count = 0; count < 9; ++count) {
    TokenList list;
    Tokens same;
    for (int64_t i = 0; i < count; ++i) {
      list.push_back(i + 40);
      same.push_back(i + 40);
    }
    check(list == same && list.size() == same.size() && list.empty() == same.empty(), "equal");
    TokenList copied = list, moved = std::move(list);
    check(list.empty() && moved == same && copied == same, "moved and copied");
    moved.append(copied);
    same.insert(same.end(), copied.begin(), copied.end());
    check(moved == same, "one behind the other");
    list = std::move(moved);
    list.push_back(7);
    same.push_back(7);
    check(list == same && moved.empty(), "and on");
    moved.push_back(1);
    check(moved == Tokens{1}, "what was moved from is as new");
  }
}

void cancels_at_once() {
  for (const bool is_asynchronous : {false, true}) {
    RunnerFacts facts = facts_of_tests();
    facts.is_asynchronous = is_asynchronous;
    Served served(facts);
    for (RequestId id = 1; id <= 6; ++id) served.batch.submit(id, {1, 2, 3}, asking(9));
    served.run(3);
    for (RequestId id = 1; id <= 6; ++id) {
      served.batch.cancel(id);
      served.batch.cancel(id);
      served.runner->forbidden.insert(id);
    }
    check(served.batch.stats().free_pages == 8 && served.batch.is_idle(), "all pages are free");
    check(served.run().empty(), "nothing is told of them");
    served.batch.submit(7, {1}, asking(1));
    check(served.run().size() == 1, "and the next one is served");
  }
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  refuses_what_can_never_be_served();
  refuses_what_the_pages_cannot_hold();
  refuses_options_out_of_range();
  ends_for_the_reason_there_is();
  tells_log_probabilities();
  says_how_probable_odd_scores_are();
  for (const bool at_start : {false, true}) {
    for (const bool is_asynchronous : {false, true}) {
      goes_on_after_a_failure(at_start, is_asynchronous);
    }
  }
  gives_up_on_a_device_that_keeps_failing();
  fails_the_one_without_a_token();
  waits_for_masks();
  computes_shared_beginnings_once();
  computes_a_prompt_once_for_those_that_follow();
  copies_what_beginnings_have_in_common();
  copies_for_those_that_come_later();
  copies_nothing_of_a_page_that_was_taken();
  follows_nobody_who_has_ended();
  scores_prompts_in_few_steps();
  lets_nobody_wait_for_ever();
  plans_a_step_while_the_one_before_runs();
  lists_hold_tokens();
  cancels_at_once();
  return exit_code();
}
