// Steps whose runs are ahead of the host: a session behind a queue behaves as one that runs at
// once, and as one of a program without the method `generate`.
#include "cpp/runtime/generate_run.h"

#include <memory>
#include <string>
#include <vector>

#include "cpp/runtime/generate.h"
#include "cpp/runtime/language_session.h"
#include "tests/cpp/chain_language_model.h"
#include "tests/cpp/check.h"
#include "tests/cpp/queue_device.h"
#include "tests/cpp/unified_device.h"

namespace npusim::tests {
namespace {

using Tokens = std::vector<int64_t>;

std::vector<SamplingOptions> settings() {
  std::vector<SamplingOptions> all(5);
  all[1].repetition_penalty = 1e9;
  all[2] = {.temperature = 3.0, .top_k = 9, .seed = 4};
  all[3] = {.temperature = 4.0, .top_p = 0.6, .min_p = 0.01, .seed = 5};
  all[4] = {.temperature = 2.5, .top_p = 0.9, .repetition_penalty = 2.0, .seed = 6};
  return all;
}

std::shared_ptr<UnifiedDevice> unified() {
  return std::make_shared<UnifiedDevice>(open_device("cpu"));
}

// The same sessions of four kinds.
struct Kinds {
  Kinds() {
    static const ChainProgram plain(false), generating(true);
    models = {plain.load(open_device("cpu")), generating.load(open_device("cpu")),
              generating.load(std::make_shared<QueueDevice>()), generating.load(unified())};
    for (const auto& model : models) sessions.push_back(std::make_unique<LanguageSession>(model));
  }
  template <typename F>
  void each(F f) {
    for (auto& session : sessions) f(session);
    for (const auto& session : sessions) {
      check(session->tokens() == sessions.front()->tokens(), "the same tokens");
    }
  }

  std::vector<std::shared_ptr<LanguageModel>> models;
  std::vector<std::unique_ptr<LanguageSession>> sessions;
};

void refuses_runs_out_of_turn() {
  static const ChainProgram program(true);
  const std::shared_ptr<Device> devices[] = {open_device("cpu"), std::make_shared<QueueDevice>(),
                                             unified()};
  for (const auto& device : devices) {
    const auto model = program.load(device);
    GenerateRuns runs(model);
    State state(model->program(), model->device());
    const DeviceSampling greedy = Sampler(SamplingOptions{}).on_device(1);
    check_refused(ErrorCode::kInput, "has been started", [&] { runs.finish(); });
    check_refused(ErrorCode::kInput, "has been started", [&] { runs.sampling(); });
    runs.start(state, greedy);
    runs.start(state, greedy);
    check_refused(ErrorCode::kInput, "2 runs of generate", [&] { runs.start(state, greedy); });
    runs.finish_all();
    check(runs.started() == 0, "both have ended");
    const auto small = model->device()->allocate(7);
    check_refused(ErrorCode::kInput, "got 7",
                  [&] { model->start_generate(state, *small, *small, *small); });
  }
}

void generates_alike() {
  for (const SamplingOptions& options : settings()) {
    Kinds kinds;
    kinds.each([&](auto& session) {
      Sampler sampler(options);
      session->append(Tokens{7});
      const Generation made = generate(
          *session, sampler, {.stop_at_eos = false, .stop_tokens = {}, .stop_sequences = {}});
      check(made.reason == FinishReason::kContext && session->position() == 40, "the context");
    });
  }
}

// Where completion is asynchronous, whether or not the host sees the memory.
void starts_the_next_run_before_it_is_asked_for() {
  static const ChainProgram program(true);
  const auto device = unified();
  LanguageSession session(program.load(device));
  Sampler sampler(SamplingOptions{});
  session.append(Tokens{7});
  check(session.step(sampler, true) == 8, "of the scores");
  check(session.step(sampler, true) == 9 && device->waiting() > 0, "one more is under way");
  check(session.step(sampler) == 10 && device->waiting() == 0, "what it chooses");
  check(session.tokens() == Tokens{7, 8, 9, 10}, "tokens");
}

// What is done to a session, by number: the same for the same random bits.
void act(std::unique_ptr<LanguageSession>& session, RandomBits& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random.next() % n); };
  const int64_t what = below(7), count = 1 + below(6), token = below(100);
  const SamplingOptions options = settings()[static_cast<size_t>(below(5))];
  const bool full = session->position() + 8 > ChainProgram::kContext;
  if (full || what == 0) return session->rewind(std::max<int64_t>(session->position() - count, 0));
  if (session->position() == 0 || what == 1) return session->append({&token, 1});
  if (what == 2) {
    session = session->fork();
    return;
  }
  if (what == 3) {
    session->logits();
    return;
  }
  Sampler sampler(options);
  for (int64_t i = 0; i < count; ++i) session->step(sampler, i % 2 == 0 || what == 4);
}

void whatever_is_done_sessions_stay_alike() {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Kinds kinds;
    RandomBits random(seed);
    for (int i = 0; i < 60; ++i) {
      const RandomBits before = random;
      kinds.each([&](auto& session) {
        random = before;
        act(session, random);
      });
    }
  }
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  refuses_runs_out_of_turn();
  generates_alike();
  starts_the_next_run_before_it_is_asked_for();
  whatever_is_done_sessions_stay_alike();
  return exit_code();
}
