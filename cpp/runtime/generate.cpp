#include "cpp/runtime/generate.h"

#include <algorithm>

namespace npusim {
namespace {

bool contains(const std::vector<int64_t>& tokens, int64_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

bool ends_with(const std::vector<int64_t>& tokens, const std::vector<int64_t>& tail) {
  return !tail.empty() && tail.size() <= tokens.size() &&
         std::equal(tail.rbegin(), tail.rend(), tokens.rbegin());
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  constexpr std::string_view kNames[] = {"length", "context", "stop", "caller"};
  return kNames[static_cast<size_t>(reason)];
}

Generation generate(LanguageSession& session, Sampler& sampler, const GenerationOptions& options,
                    const std::function<bool(int64_t)>& on_token) {
  const LanguageModelFacts& facts = session.model()->facts();
  const int64_t room = facts.max_context - session.position();
  const bool limited = options.max_new_tokens > 0 && options.max_new_tokens <= room;
  const int64_t most = limited ? options.max_new_tokens : room;
  Generation made{.tokens = {}, .reason = limited ? FinishReason::kLength : FinishReason::kContext};
  made.tokens.reserve(static_cast<size_t>(most));
  while (static_cast<int64_t>(made.tokens.size()) < most) {
    const bool more = static_cast<int64_t>(made.tokens.size()) + 1 < most;
    const int64_t token = session.step(sampler, more);
    made.tokens.push_back(token);
    const bool stop = contains(options.stop_tokens, token) ||
                      (options.stop_at_eos && contains(facts.eos_token_ids, token)) ||
                      std::any_of(options.stop_sequences.begin(), options.stop_sequences.end(),
                                  [&](const auto& tail) { return ends_with(made.tokens, tail); });
    const bool go_on = !on_token || on_token(token);
    if (stop || !go_on) {
      made.reason = stop ? FinishReason::kStop : FinishReason::kCaller;
      break;
    }
  }
  return made;
}

}  // namespace npusim
