// Random requests through the whole batch, against what each of them makes alone: nothing that
// happens to the others, to pages or to steps may show in an answer, and every promise of
// scheduler.h and batch.h is checked after every step.
//
//   test_batch_traces [TRACES [SEED]]     100,000 traces take about ten seconds
#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include "cpp/serve/batch.h"
#include "tests/cpp/check.h"
#include "tests/cpp/hash_runner.h"

namespace npusim::tests {
namespace {

using namespace npusim::serve;

constexpr int64_t kVocabulary = 24;

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(bits_.next() % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(double probability) { return bits_.unit() < probability; }
  uint64_t bits() { return bits_.next(); }

 private:
  RandomBits bits_;
};

struct Known {
  AloneAnswer expected;
  int64_t made = 0, asked = 0;
  std::vector<int64_t> prompt;
  bool has_ended = false, is_masked = false;
  int64_t made_at_restart = -1;
  TokenMask mask;
};

// One trace.
class Trace {
 public:
  explicit Trace(uint64_t seed) : random_(seed), facts_(random_facts()) {
    plain_ = random_.chance(0.5);
    follows_ = random_.chance(0.3);
    runner_ = std::make_shared<HashRunner>(facts_);
    const bool is_faulty = random_.chance(0.05);
    if (is_faulty)
      (random_.chance(0.5) ? runner_->fails_at_start : runner_->fails_at_finish) =
          random_.between(0, 40);
    can_fail_ = is_faulty;
    BatchOptions options{.prefix_cache = random_.chance(0.7), .patience = random_.between(0, 4)};
    options.max_requests = random_.between(0, facts_.max_requests);
    options.max_step_tokens = random_.between(0, facts_.max_step_tokens);
    batch_ = std::make_unique<Batch>(runner_, options);
    runner_->most_tokens = options.max_step_tokens;
    runner_->most_rows = batch_->max_requests();
    for (auto& shared : prefixes_) shared = random_tokens(random_.between(1, 12));
  }

  void run() {
    int64_t left = random_.between(1, 14);
    const double rate = random_.chance(0.5) ? 1.0 : 0.2;
    while (left > 0 || open_ > 0) {
      while (left > 0 && random_.chance(rate)) --left, submit();
      if (random_.chance(0.03)) cancel();
      give_masks();
      step();
      if (failures > 0 || ++steps_ > 20'000) break;
    }
    check(open_ == 0, "every request ends");
    const BatchStats stats = batch_->stats();
    check(stats.free_pages == stats.pages, "all pages are free at the end");
    check(stats.running + stats.waiting == 0 && batch_->is_idle(), "nothing is left");
    check_order();
    seen.steps += stats.steps;
    seen.preemptions += stats.preemptions;
    seen.prefix_hits += stats.prefix_hits;
    seen.failed_steps += stats.failed_steps;
    seen.stopped += stats.stopped;
    seen.at_length += stats.at_length;
    seen.cancelled += stats.cancelled;
    copied += runner_->copied;
  }

  // Of all events and steps, in order: the same calls have the same.
  uint64_t digest() const {
    return hash_behind(digest_, runner_->computed * 1000 + runner_->steps());
  }

  inline static BatchStats seen;  // of all traces
  inline static int64_t copied = 0;

 private:
  RunnerFacts random_facts() {
    RunnerFacts facts;
    facts.vocab_size = kVocabulary;
    facts.page_tokens = random_.between(1, 5);
    facts.pages = random_.between(1, random_.chance(0.5) ? 10 : 30);
    facts.max_context = random_.between(2, random_.chance(0.5) ? 200 : 48);
    facts.max_requests = random_.between(1, 8);
    facts.max_step_tokens = random_.between(1, 24);
    facts.eos_tokens = {3};
    facts.is_asynchronous = random_.chance(0.5);
    facts.copies_pages = random_.chance(0.7);
    return facts;
  }

  std::vector<int64_t> random_tokens(int64_t count) {
    std::vector<int64_t> tokens(static_cast<size_t>(count));
    for (int64_t& token : tokens) token = random_.between(0, kVocabulary - 1);
    return tokens;
  }

  RequestOptions random_options() {
    RequestOptions options;
    options.max_tokens = random_.chance(0.2) ? -1 : random_.between(0, 30);
    options.ignore_eos = random_.chance(0.6);
    if (random_.chance(0.2)) options.stop_tokens = random_tokens(2);
    if (random_.chance(0.2)) options.min_tokens = random_.between(0, 6);
    if (random_.chance(0.5)) {
      options.sampling.temperature = 0.8;
      options.sampling.top_k = random_.between(0, 6);
      options.sampling.seed = random_.bits();
    }
    if (random_.chance(0.2)) options.sampling.repetition_penalty = 1.2;
    if (random_.chance(0.2)) options.frequency_penalty = 0.5;
    if (random_.chance(0.1)) options.logit_bias = {{random_.between(0, kVocabulary - 1), 3.0f}};
    if (random_.chance(0.1)) options.prompt_logprobs = 2;
    if (random_.chance(0.1)) options.logprobs = 1;
    if (random_.chance(0.2)) options.salt = "another";
    if (random_.chance(0.1)) options.prefix_cache = false;
    if (!plain_) options.priority = random_.between(-1, 1);
    if (!plain_ && random_.chance(0.1)) options.masked = true;
    return options;
  }

  void submit() {
    std::vector<int64_t> tokens;
    RequestOptions options = random_options();
    if (follows_ && random_.chance(0.5)) {
      options.follows = static_cast<RequestId>(random_.between(0, static_cast<int64_t>(latest_)));
    }
    const auto followed = known_.find(options.follows);
    if (followed != known_.end()) {
      tokens = followed->second.prompt;
      if (random_.chance(0.9)) return submit(std::move(tokens), options);
    } else if (random_.chance(0.6))
      tokens = prefixes_[static_cast<size_t>(random_.between(0, 2))];
    const std::vector<int64_t> own = random_tokens(random_.between(tokens.empty() ? 1 : 0, 10));
    tokens.insert(tokens.end(), own.begin(), own.end());
    submit(std::move(tokens), options);
  }

  void submit(std::vector<int64_t> tokens, const RequestOptions& options) {
    try {
      batch_->check(tokens, options);
    } catch (const Error&) {
      return;  // longer than the pool or the context
    }
    Known& known = known_[++latest_];
    known.prompt = tokens;
    known.is_masked = options.masked;
    if (options.masked) known.mask = {static_cast<uint32_t>(random_.bits()) | 1U << 5};
    std::vector<int64_t> stops = options.stop_tokens;
    if (!options.ignore_eos) stops.push_back(3);
    const auto prompt = static_cast<int64_t>(tokens.size());
    const int64_t room = facts_.pages * facts_.page_tokens + 1;
    const int64_t most =
        options.max_tokens == -1 ? std::min(facts_.max_context, room) : prompt + options.max_tokens;
    known.asked = options.prompt_logprobs >= 0 ? prompt - 1 : -1;
    const bool can_choose = !options.masked || options.min_tokens == 0;
    if (!can_choose) return void(known_.erase(latest_));
    known.expected =
        answer_alone(facts_, tokens, options, most, stops, options.masked ? &known.mask : nullptr);
    ++open_;
    batch_->submit(latest_, tokens, options);
  }

  void cancel() {
    const auto id = static_cast<RequestId>(random_.between(1, static_cast<int64_t>(latest_) + 1));
    batch_->cancel(id);
    const auto found = known_.find(id);
    if (found == known_.end() || found->second.has_ended) return;
    found->second.has_ended = true;
    --open_;
    runner_->forbidden.insert(id);
    expect_invariants();
  }

  void give_masks() {
    for (auto& [id, known] : known_) {
      if (known.is_masked && !known.has_ended && random_.chance(0.7)) batch_->allow(id, known.mask);
    }
  }

  void step() {
    const int64_t preempted = batch_->stats().preemptions;
    const int64_t failed = batch_->stats().failed_steps;
    batch_->step();
    expect_invariants();
    std::set<RequestId> made;
    for (const Event& event : batch_->take_events()) {
      take(event);
      if (!event.tokens.empty() && !event.is_last()) made.insert(event.request);
    }
    const BatchStats stats = batch_->stats();
    const bool is_calm = stats.preemptions == preempted && stats.failed_steps == failed;
    const bool was_calm = std::exchange(was_calm_, is_calm);  // asynchronous ones tell a step later
    if (is_calm && was_calm) {
      for (const RequestId id : generating_) {
        const Known& known = known_.at(id);
        check(known.has_ended || known.is_masked || made.contains(id),
              "a request that generates has a token in every step");
      }
    }
    generating_ = std::move(made);
    for (const RequestId id : std::exchange(runner_->restarts, {})) restarted(known_.at(id));
  }

  // Of requests with the same priority, none is put back twice without a token between.
  void restarted(Known& known) {
    if (plain_ && !can_fail_) {
      check(known.made > known.made_at_restart, "put back, admitted and put back for nothing");
    }
    known.made_at_restart = known.made;
  }

  void take(const Event& event) {
    digest_ = hash_behind(digest_, static_cast<int64_t>(event.request));
    for (const int64_t token : event.tokens) digest_ = hash_behind(digest_, token);
    Known& known = known_.at(event.request);
    check(!known.has_ended, "an event behind the last one");
    for (const int64_t token : event.tokens) {
      const auto place = static_cast<size_t>(known.made++);
      check(place < known.expected.tokens.size() && known.expected.tokens[place] == token,
            "a token is another one than alone");
    }
    if (event.prompt_logprobs) {
      check(static_cast<int64_t>(event.prompt_logprobs->size()) == known.asked,
            "a log-probability for each token of the prompt but the first");
      known.asked = -1;
      check_prompt(known, *event.prompt_logprobs);
    }
    if (!event.is_last()) return;
    known.has_ended = true;
    --open_;
    runner_->forbidden.insert(event.request);
    if (event.error) {
      check(can_fail_ && event.error->code() == ErrorCode::kDevice, event.error->what());
      return;
    }
    check(known.asked == -1, "the prompt's log-probabilities were told");
    check(known.made == static_cast<int64_t>(known.expected.tokens.size()), "an answer is whole");
    check(*event.ending == known.expected.ending, "why an answer ends");
  }

  static void check_prompt(const Known& known, const std::vector<TokenLogprob>& told) {
    std::vector<float> scores(static_cast<size_t>(kVocabulary));
    uint64_t hash = 0;
    for (size_t i = 0; i < told.size(); ++i) {
      hash = hash_behind(hash, known.prompt[i]);
      scores_of_hash(hash, scores);
      const TokenLogprob expected = logprob_of(scores, known.prompt[i + 1], 2);
      check(told[i].token == expected.token && told[i].logprob == expected.logprob &&
                told[i].top == expected.top,
            "a token of the prompt is as probable as alone");
    }
  }

  // Among equals, first come, first served; but for those that follow others.
  void check_order() {
    if (!plain_ || can_fail_ || follows_) return;
    check(std::ranges::is_sorted(runner_->order), "requests of one priority run as they came");
  }

  void expect_invariants() {
    try {
      batch_->check_invariants();
    } catch (const std::logic_error& broken) {
      check(false, broken.what());
    }
  }

  Random random_;
  RunnerFacts facts_;
  bool plain_ = true, follows_ = false, can_fail_ = false, was_calm_ = true;
  std::shared_ptr<HashRunner> runner_;
  std::unique_ptr<Batch> batch_;
  std::vector<int64_t> prefixes_[3];
  std::map<RequestId, Known> known_;
  std::set<RequestId> generating_;
  RequestId latest_ = 0;
  int64_t open_ = 0, steps_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace
}  // namespace npusim::tests

int main(int argc, char** argv) {
  using namespace npusim::tests;
  const uint64_t traces = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  for (uint64_t i = 0; i < traces; ++i) {
    Trace trace(seed + i);
    trace.run();
    if (i % 8 == 0) {
      Trace again(seed + i);
      again.run();
      check(again.digest() == trace.digest(), "the same calls give the same events");
    }
    if (failures == 0) continue;
    std::fprintf(stderr, "test_batch_traces 1 %llu fails\n",
                 static_cast<unsigned long long>(seed + i));
    break;
  }
  // Traces that meet nothing would show nothing.
  const auto& seen = Trace::seen;
  const bool meets_all = seen.preemptions > 0 && seen.prefix_hits > 0 && seen.failed_steps > 0 &&
                         seen.stopped > 0 && seen.at_length > 0 && seen.cancelled > 0 &&
                         Trace::copied > 0;
  check(meets_all || traces < 1'000, "traces meet everything that can happen");
  std::printf(
      "%lld steps, %lld preemptions, %lld tokens found in pages, %lld copies, %lld failures\n",
      static_cast<long long>(seen.steps), static_cast<long long>(seen.preemptions),
      static_cast<long long>(seen.prefix_hits), static_cast<long long>(Trace::copied),
      static_cast<long long>(seen.failed_steps));
  return exit_code();
}
