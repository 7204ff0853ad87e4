// Language models, sessions and generation through the C++ interface.
#include "cpp/runtime/language_model.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cpp/runtime/generate.h"
#include "cpp/runtime/language_session.h"
#include "tests/cpp/chain_language_model.h"
#include "tests/cpp/check.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Counted, for the promise that a step allocates nothing; as in test_executor.cpp.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept {
  std::free(block);
}

namespace npusim::tests {
namespace {

using Tokens = std::vector<int64_t>;

std::shared_ptr<LanguageModel> chain(int threads = 1) {
  static const ChainProgram program;
  return program.load(open_device("cpu", {{"threads", threads}}));
}

Sampler greedy() {
  return Sampler(SamplingOptions{});
}

// One token a run: prefill of this model looks at the first of its tokens.
void say(LanguageSession& session, const Tokens& tokens) {
  for (const int64_t token : tokens) session.append({&token, 1});
}

void steps_allocate_nothing() {
  LanguageSession session(chain(2));
  SamplingOptions options{.temperature = 0.8, .top_k = 20, .top_p = 0.9, .seed = 3};
  options.repetition_penalty = 1.1;
  Sampler sampler(options);
  session.append(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  session.step(sampler);
  session.step(sampler);
  const int64_t before = allocations;
  for (int i = 0; i < 20; ++i) session.step(sampler);
  check(allocations == before, "allocations");
  check(session.position() == 32, "position");
}

void generates_until_told_to_stop() {
  const auto model = chain();
  Sampler sampler = greedy();
  const auto from = [&](int64_t token, const GenerationOptions& options,
                        const std::function<bool(int64_t)>& on_token = {}) {
    LanguageSession session(model);
    session.append(Tokens{token});
    return generate(session, sampler, options, on_token);
  };
  auto made = from(10, {.max_new_tokens = 3, .stop_tokens = {}, .stop_sequences = {}});
  check(made.tokens == Tokens{11, 12, 13} && made.reason == FinishReason::kLength, "length");
  made = from(97, {.max_new_tokens = 9, .stop_tokens = {}, .stop_sequences = {}});
  check(made.tokens == Tokens{98, 99} && made.reason == FinishReason::kStop, "end of text");
  made = from(98,
              {.max_new_tokens = 3, .stop_at_eos = false, .stop_tokens = {}, .stop_sequences = {}});
  check(made.tokens == Tokens{99, 0, 1}, "after the end of text");
  made = from(10, {.stop_tokens = {13, 12}, .stop_sequences = {}});
  check(made.tokens == Tokens{11, 12} && made.reason == FinishReason::kStop, "stop token");
  made = from(10, {.stop_tokens = {}, .stop_sequences = {{10, 11}, {}, {13, 14}, {15}}});
  check(made.tokens == Tokens{11, 12, 13, 14}, "stop sequence, of new tokens only");
  made = from(10, {}, [](int64_t token) { return token < 12; });
  check(made.tokens == Tokens{11, 12} && made.reason == FinishReason::kCaller, "caller");
  made = from(10, {});
  check(made.tokens.size() == 39 && made.reason == FinishReason::kContext, "context");
}

void refuses_runs_it_has_no_room_for() {
  const auto model = chain();
  State state(model->program(), model->device());
  std::vector<float> scores(100), small(99), large(101);
  const Tokens chunk(8, 1), none, longer(9, 1), much(5000, 1);
  const auto refused = [&](const Tokens& tokens, std::vector<float>& logits, const char* words) {
    check_refused(ErrorCode::kInput, words, [&] { model->feed(state, tokens, logits); });
  };
  refused(none, scores, "1 … 8 tokens, got 0");
  refused(longer, scores, "1 … 8 tokens, got 9");
  refused(much, scores, "1 … 8 tokens, got 5000");
  refused(chunk, small, "100 scores, and room for 99");
  refused(chunk, large, "100 scores, and room for 101");
  model->feed(state, chunk, scores);
  model->feed(state, chunk, {});
  check(scores[2] == 5.0f, "what was accepted ran");
  const auto memory = model->device()->allocate(40);
  check_refused(ErrorCode::kInput, "no method generate",
                [&] { model->start_generate(state, *memory, *memory, *memory); });
  check_refused(ErrorCode::kInput, "no method generate", [&] { model->settle_generate(); });
  check_refused(ErrorCode::kInput, "no method generate", [&] { model->token(); });
  check_refused(ErrorCode::kInput, "no method generate", [&] { model->history(); });
}

void goes_back_and_forks() {
  LanguageSession session(chain());
  Sampler sampler = greedy();
  say(session, {1, 2, 3});
  const auto twin = session.fork();
  session.append(Tokens{50});
  check(twin->step(sampler) == 4 && session.step(sampler) == 51, "independent");
  session.rewind(2);
  check(session.step(sampler) == 3, "rewound");
  check_refused(ErrorCode::kLimit, "position 9", [&] { session.rewind(9); });
  check_refused(ErrorCode::kLimit, "Token 100", [&] { session.append(Tokens{1, 100}); });
  check_refused(ErrorCode::kLimit, "40 tokens; 3 are there and 38",
                [&] { session.append(Tokens(38)); });
  check(session.tokens() == Tokens{1, 2, 3}, "refusals change nothing");
  session.reset();
  check_refused(ErrorCode::kLimit, "no tokens yet", [&] { session.logits(); });
}

void watches_each_run() {
  LanguageSession session(chain());
  session.extend(Tokens(20));
  int runs = 1;
  while (session.advance()) ++runs;
  check(runs == 3, "20 tokens are two chunks and the rest");
  check(!session.advance(), "nothing waits");
}

void saves_and_loads() {
  const auto path = std::filesystem::temp_directory_path() /
                    ("npusim_session_" + std::to_string(::getpid()) + ".safetensors");
  LanguageSession session(chain()), other(chain());
  say(session, {7, 8, 9});
  session.save(path);
  session.save(path);
  other.load(path);
  Sampler sampler = greedy();
  check(other.tokens() == Tokens{7, 8, 9} && other.step(sampler) == 10, "loaded");
  std::ifstream file(path, std::ios::binary);
  const std::string image((std::istreambuf_iterator<char>(file)), {});
  file.close();  // Windows removes no file that is open
  for (size_t size = 0; size < image.size(); size += 7) {
    std::ofstream(path, std::ios::binary) << image.substr(0, size);
    check_refused(ErrorCode::kFormat, path.string(), [&] { other.load(path); });
  }
  std::filesystem::remove(path);
  check_refused(ErrorCode::kIo, "", [&] { other.load(path); });
  check_refused(ErrorCode::kIo, "Cannot write", [&] { other.save(path / "below"); });
  check(other.tokens() == Tokens{7, 8, 9, 10}, "refusals change nothing");
}

void sessions_share_a_model_on_threads() {
  const auto model = chain(2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      for (int i = 0; i < 20; ++i) {
        LanguageSession session(model);
        Sampler sampler = greedy();
        session.append(Tokens(9, seed));
        if (session.step(sampler) != seed + 1 || session.step(sampler) != seed + 2) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  check(wrong == 0, "threads");
}

void refuses_what_is_no_language_model() {
  const auto load = [](const std::function<void(ChainProgram&)>& change) {
    ChainProgram program;
    change(program);
    program.load(open_device("cpu"));
  };
  const auto says = [](std::string from, const std::string& to) {
    return [=](ChainProgram& program) {
      std::string text = program.metadata();
      text.replace(text.find(from), from.size(), to);
      program.set_metadata(text);
    };
  };
  check_refused(ErrorCode::kInput, "extract_llm", [&] { load(says("language_model", "other")); });
  check_refused(ErrorCode::kInput, "extract_llm",
                [&] { load([](ChainProgram& program) { program.set_metadata(""); }); });
  const auto refused = [&](const char* words, const std::function<void(ChainProgram&)>& change) {
    check_refused(ErrorCode::kFormat, words, [&] { load(change); });
  };
  refused("no room for 41", says("\"max_context\": 40", "\"max_context\": 41"));
  refused("vocab_size is 0", says("\"vocab_size\": 100", "\"vocab_size\": 0"));
  refused("no method decode", [](ChainProgram& p) { (*p).methods.pop_back(); });
  refused("tokens is missing", [](ChainProgram& p) { (*p).methods[1].inputs[0].name = "ids"; });
  refused("other inputs", [](ChainProgram& p) {
    (*p).methods[1].inputs = (*p).methods[0].inputs;
    (*p).methods[1].inputs[0].shape = (*p).methods[1].inputs[0].alloc_shape = {1, 1};
  });
  refused("logits are no floats",
          [](ChainProgram& p) { (*p).methods[0].outputs[0].dtype = DType::kInt32; });
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  steps_allocate_nothing();
  generates_until_told_to_stop();
  refuses_runs_it_has_no_room_for();
  goes_back_and_forks();
  watches_each_run();
  saves_and_loads();
  sessions_share_a_model_on_threads();
  refuses_what_is_no_language_model();
  return exit_code();
}
