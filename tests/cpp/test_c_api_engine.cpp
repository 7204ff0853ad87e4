// Engines of many requests through the C interface. After tokens comes their sum, modulo 48.
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "include/npusim/npusim.h"
#include "tests/cpp/c_api_case.h"

namespace npusim::tests {
namespace {

using Tokens = std::vector<int64_t>;

constexpr int64_t kVocabulary = 48, kContext = 40;

struct Serving {
  explicit Serving(npusim_engine_options options = NPUSIM_ENGINE_OPTIONS_INIT)
      : loaded("paged_sum.npubin") {
    CHECK_OK(npusim_engine_create(loaded.program, loaded.device, nullptr, &options, &engine));
  }
  ~Serving() { npusim_engine_free(engine); }

  uint64_t submit(const Tokens& tokens, npusim_request_options options) const {
    uint64_t request = 0;
    options.ignore_eos = 1;
    CHECK_OK(npusim_engine_submit(engine, tokens.data(), tokens.size(), &options, &request));
    return request;
  }

  Loaded loaded;
  npusim_engine* engine = nullptr;
};

npusim_request_options asking(int64_t max_tokens) {
  npusim_request_options options = NPUSIM_REQUEST_OPTIONS_INIT;
  options.max_tokens = max_tokens;
  return options;
}

Tokens sums(Tokens tokens, int64_t count) {
  Tokens made;
  for (int64_t i = 0; i < count; ++i) {
    made.push_back(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) % kVocabulary);
    tokens.push_back(made.back());
  }
  return made;
}

// What events told.
struct Told {
  std::map<uint64_t, Tokens> tokens;
  std::map<uint64_t, std::vector<double>> log_probabilities;
  std::map<uint64_t, npusim_status> ended;
  std::string error;
  size_t events = 0, most = 1'000'000;  // after which nothing more is wanted

  static int take(void* context, const npusim_engine_event* event) {
    Told& told = *static_cast<Told*>(context);
    check(event->struct_size == sizeof *event, "the event's size");
    Tokens& tokens = told.tokens[event->request];
    tokens.insert(tokens.end(), event->tokens, event->tokens + event->token_count);
    if (event->log_probabilities != nullptr) {
      std::vector<double>& to = told.log_probabilities[event->request];
      to.insert(to.end(), event->log_probabilities, event->log_probabilities + event->token_count);
    }
    if (event->has_ended != 0) told.ended[event->request] = event->status;
    if (event->status != NPUSIM_OK) told.error = event->error;
    return ++told.events >= told.most ? 1 : 0;
  }
  void poll(const Serving& serving, size_t count) {
    for (int i = 0; i < 1000 && ended.size() < count; ++i) {
      CHECK_OK(npusim_engine_poll(serving.engine, 10, take, this));
    }
    check(ended.size() == count, "all have ended");
  }
};

void serves_many() {
  const Serving serving;
  npusim_engine_info info = NPUSIM_ENGINE_INFO_INIT;
  CHECK_OK(npusim_engine_get_info(serving.engine, &info));
  check(info.vocab_size == kVocabulary && info.max_context == kContext && info.pages == 24 &&
            info.page_tokens == 4 && info.max_requests == 4 && info.eos_token_count == 1,
        "what the program says");
  std::map<uint64_t, Tokens> expected;
  for (int64_t i = 0; i < 20; ++i) {
    const Tokens prompt = {1, 2, 3, 4, 5, 6, 7, 8, i};
    expected[serving.submit(prompt, asking(1 + i % 7))] = sums(prompt, 1 + i % 7);
  }
  Told told;
  told.poll(serving, expected.size());
  check(told.tokens == expected, "each has the sums of its own");
  npusim_engine_stats stats = NPUSIM_ENGINE_STATS_INIT;
  CHECK_OK(npusim_engine_get_stats(serving.engine, &stats));
  check(stats.free_pages == 24 && stats.prefix_hits > 0 && stats.steps > 0, "what was counted");
}

void takes_options() {
  const Serving serving;
  npusim_request_options options = asking(-1);
  const uint64_t none = serving.submit({1, 2}, options);
  options = asking(0);
  const uint64_t all = serving.submit({1, 2}, options);
  options = asking(2);
  const int64_t token = 9, stop = 10;
  const float bias = 10'000;
  options.bias_tokens = &token;
  options.bias_values = &bias;
  options.bias_count = 1;
  options.log_probabilities = 1;
  const uint64_t biased = serving.submit({1, 2}, options);
  options = asking(9);
  options.stop_tokens = &stop;
  options.stop_token_count = 1;
  const uint64_t stopped = serving.submit({4, 1}, options);
  Told told;
  told.poll(serving, 4);
  check(told.tokens[none].empty(), "none");
  check(told.tokens[all].size() == kContext - 2, "as many as the context holds");
  check(told.tokens[biased] == Tokens{9, 9}, "the bias decides");
  check(std::abs(told.log_probabilities[biased].at(0) + 36) < 1, "by the model's own scores");
  check(told.tokens[stopped] == Tokens{5, 10}, "up to the stop token");
}

// Several answers to one prompt: the first one's is the only one that is computed, but for its last
// token.
void follows_the_first_of_a_prompt() {
  const Serving serving;
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 7};
  npusim_request_options options = asking(1);
  options.masked = 1;  // nothing of it runs before all have come
  std::map<uint64_t, Tokens> expected;
  const uint64_t first = serving.submit(prompt, options);
  expected[first] = {5};
  options = asking(3);
  options.follows = first;
  for (int64_t i = 0; i < 3; ++i) {
    expected[serving.submit(prompt, options)] = sums(prompt, 3);
  }
  std::vector<uint8_t> mask(kVocabulary);
  mask[5] = 1;
  CHECK_OK(npusim_engine_allow(serving.engine, first, mask.data(), mask.size()));
  Told told;
  told.poll(serving, expected.size());
  check(told.tokens == expected, "each has its own tokens");
  npusim_engine_stats stats = NPUSIM_ENGINE_STATS_INIT;
  CHECK_OK(npusim_engine_get_stats(serving.engine, &stats));
  check(stats.prompt_tokens == 7 + 3, "one was computed, and a token of each of three");
  Told late;  // follows one that has ended
  const uint64_t last = serving.submit(prompt, options);
  late.poll(serving, 1);
  check(late.tokens[last] == sums(prompt, 3), "nobody is waited for");
}

void waits_for_masks() {
  const Serving serving;
  npusim_request_options options = asking(1);
  options.masked = 1;
  const uint64_t request = serving.submit({1}, options);
  std::vector<uint8_t> mask(kVocabulary);
  mask[33] = 1;
  check_status(npusim_engine_allow(serving.engine, request, mask.data(), 3), NPUSIM_ERROR_INPUT,
               "a mask of 3 tokens");
  CHECK_OK(npusim_engine_allow(serving.engine, request, mask.data(), mask.size()));
  Told told;
  told.poll(serving, 1);
  check(told.tokens[request] == Tokens{33}, "what may come");
}

void keeps_what_a_callback_did_not_want() {
  const Serving serving;
  for (int64_t i = 0; i < 6; ++i) serving.submit({i}, asking(1));
  int32_t has_ended = 0;
  CHECK_OK(npusim_engine_drain(serving.engine, 60, &has_ended));
  check(has_ended == 1, "all have ended");
  Told told;
  told.most = 2;
  check_status(npusim_engine_poll(serving.engine, 0, Told::take, &told), NPUSIM_ERROR_CANCELLED);
  check(told.events == 2, "no more than it wanted");
  told.most = 1'000'000;
  told.poll(serving, 6);
  check(told.events == 6, "the others come with the next poll");
}

void refuses() {
  npusim_engine_options options = NPUSIM_ENGINE_OPTIONS_INIT;
  options.max_requests = 1;
  options.max_waiting = -1;
  const Serving serving(options);
  npusim_engine* engine = serving.engine;
  uint64_t request = 0;
  const int64_t unknown = 48, known = 1;
  check_status(npusim_engine_submit(engine, nullptr, 0, nullptr, &request), NPUSIM_ERROR_LIMIT,
               "no tokens");
  check_status(npusim_engine_submit(engine, &unknown, 1, nullptr, &request), NPUSIM_ERROR_LIMIT,
               "outside the vocabulary");
  check_status(npusim_engine_submit(engine, nullptr, 1, nullptr, &request), NPUSIM_ERROR_INPUT);
  check_status(npusim_engine_submit(engine, &unknown, 1, nullptr, nullptr), NPUSIM_ERROR_INPUT);
  check_status(npusim_engine_poll(engine, 0, nullptr, nullptr), NPUSIM_ERROR_INPUT, "on_event");
  check_status(npusim_engine_close(nullptr), NPUSIM_ERROR_HANDLE, "engine handle is null");
  npusim_request_options bad = asking(-2);
  check_status(npusim_engine_submit(engine, &known, 1, &bad, &request), NPUSIM_ERROR_LIMIT,
               "max_tokens");
  npusim_request_options masked = asking(1);
  masked.masked = 1;
  serving.submit({1}, masked);
  check_status(npusim_engine_submit(engine, &known, 1, nullptr, &request), NPUSIM_ERROR_BUSY,
               "queue is full");
  CHECK_OK(npusim_engine_close(engine));
  Told told;
  told.poll(serving, 1);
  check(told.ended.begin()->second == NPUSIM_ERROR_BUSY && told.error == "The engine was closed",
        "it is told why it ended");
  const Loaded other("sum.npubin");
  npusim_engine* made = nullptr;
  check_status(npusim_engine_create(other.program, other.device, nullptr, nullptr, &made),
               NPUSIM_ERROR_INPUT, "no method 'step'");
  npusim_engine_free(nullptr);
}

void forgets_what_is_cancelled() {
  const Serving serving;
  npusim_request_options masked = asking(1);
  masked.masked = 1;
  const uint64_t request = serving.submit({1}, masked);
  CHECK_OK(npusim_engine_cancel(serving.engine, request));
  CHECK_OK(npusim_engine_cancel(serving.engine, 4711));
  const uint64_t other = serving.submit({1}, asking(1));
  Told told;
  told.poll(serving, 1);
  check(told.ended.contains(other) && told.events == 1, "nothing tells of it");
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  serves_many();
  takes_options();
  follows_the_first_of_a_prompt();
  waits_for_masks();
  keeps_what_a_callback_did_not_want();
  refuses();
  forgets_what_is_cancelled();
  return exit_code();
}
