#include "cpp/serve/active_request.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cpp/runtime/error.h"

namespace npusim::serve {
namespace {

// Collects what is wrong with a request.
class Problems {
 public:
  void expect(bool holds, const std::string& what) {
    if (!holds) text_ += (text_.empty() ? "" : "; ") + what;
  }
  void refuse() const {
    if (!text_.empty()) throw Error(ErrorCode::kLimit, "The request: " + text_ + ".");
  }

 private:
  std::string text_;
};

std::string number(int64_t value) {
  return std::to_string(value);
}

// Tokens that the pages of all requests have room for.
int64_t room_of(const RunnerFacts& facts) {
  return std::min(facts.pages, facts.max_context) * facts.page_tokens;
}

// Tokens that one request can have; the last one of an answer needs no room.
int64_t most_tokens(const RunnerFacts& facts) {
  return std::min(facts.max_context, room_of(facts) + 1);
}

void check_length(const RunnerFacts& facts, int64_t prompt, int64_t max_tokens,
                  Problems& problems) {
  problems.expect(prompt > 0, "it has no tokens; give one at least");
  problems.expect(max_tokens >= -1, "max_tokens is " + number(max_tokens) +
                                        "; it must be 0 or more, or -1: as many as possible");
  const int64_t asked = max_tokens < 0 ? 1 : max_tokens;
  const auto refuse = [&](const char* what, int64_t room, const char* advice) {
    problems.expect(false, "it has " + number(prompt) + " tokens and asks for " + number(asked) +
                               " more; " + what + " " + number(room) + advice);
  };
  if (asked > facts.max_context - prompt) {
    refuse("the context holds", facts.max_context, ": shorten it, or ask for less");
  } else if (std::max(prompt, prompt + asked - 1) > room_of(facts)) {
    refuse("the pages hold", room_of(facts), ": give the engine more memory, or ask for less");
  }
}

void check_tokens(const RunnerFacts& facts, std::span<const int64_t> tokens, const char* what,
                  Problems& problems) {
  const auto is_unknown = [&](int64_t token) { return token < 0 || token >= facts.vocab_size; };
  const auto wrong = std::ranges::find_if(tokens, is_unknown);
  if (wrong == tokens.end()) return;
  problems.expect(false, std::string(what) + " " + number(*wrong) +
                             " is outside the vocabulary, 0 to " + number(facts.vocab_size - 1));
}

void check_counts(const RunnerFacts& facts, const RequestOptions& options, Problems& problems) {
  const auto in_range = [&](int64_t count) { return count >= -1 && count <= facts.vocab_size; };
  problems.expect(options.min_tokens >= 0,
                  "min_tokens is " + number(options.min_tokens) + "; it must be 0 or more");
  problems.expect(in_range(options.logprobs) && in_range(options.prompt_logprobs),
                  "logprobs and prompt_logprobs must be -1 (none) to " + number(facts.vocab_size));
}

std::vector<int64_t> stops_of(const RequestOptions& options, const RunnerFacts& facts) {
  std::vector<int64_t> stops = options.stop_tokens;
  for (const int64_t token : facts.eos_tokens) {
    const bool is_known = token >= 0 && token < facts.vocab_size;
    if (is_known && !options.ignore_eos) stops.push_back(token);
  }
  std::ranges::sort(stops);
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  return stops;
}

}  // namespace

void check_request(const RunnerFacts& facts, std::span<const int64_t> tokens,
                   const RequestOptions& options) {
  options.sampling.check();
  Problems problems;
  check_length(facts, static_cast<int64_t>(tokens.size()), options.max_tokens, problems);
  check_tokens(facts, tokens, "token", problems);
  check_tokens(facts, options.stop_tokens, "stop token", problems);
  check_counts(facts, options, problems);
  problems.expect(
      std::isfinite(options.presence_penalty) && std::isfinite(options.frequency_penalty),
      "presence_penalty and frequency_penalty must be finite");
  for (const auto& [token, bias] : options.logit_bias) {
    check_tokens(facts, {&token, 1}, "the token of a bias,", problems);
    problems.expect(std::isfinite(bias), "the bias of token " + number(token) + " is not finite");
  }
  problems.refuse();
}

ActiveRequest::ActiveRequest(RequestId number, std::vector<int64_t> given, RequestOptions asked,
                             const RunnerFacts& facts)
    : id(number),
      options(std::move(asked)),
      tokens(std::move(given)),
      prompt(static_cast<int64_t>(tokens.size())),
      most(options.max_tokens == -1 ? most_tokens(facts) : prompt + options.max_tokens),
      choice(options, stops_of(options, facts)),
      rank{options.priority, number} {}

int64_t ActiveRequest::known() const noexcept {
  return static_cast<int64_t>(tokens.size()) + (is_choosing ? 1 : 0);
}

int64_t ActiveRequest::most_cached() const noexcept {
  return std::max(prompt, most - 1);
}

bool ActiveRequest::scores_prompt() const noexcept {
  return options.prompt_logprobs >= 0 && !has_told_prompt &&
         static_cast<int64_t>(prompt_logprobs.size()) + 1 < prompt;
}

bool ActiveRequest::shares_pages() const noexcept {
  return options.prefix_cache && !scores_prompt();
}

RunningLoad ActiveRequest::load() const noexcept {
  RunningLoad load{.known = known(),
                   .scheduled = scheduled,
                   .most = most_cached(),
                   .pages = static_cast<int64_t>(table.pages.size()),
                   .scores_all = scores_prompt(),
                   .is_held = false};
  const bool waits_for_mask = options.masked && (is_choosing || !mask);
  load.is_held = load.pending() <= 0 || load.known > most_cached() || waits_for_mask;
  return load;
}

}  // namespace npusim::serve
