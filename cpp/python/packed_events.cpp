#include "cpp/python/packed_events.h"

#include <cstdint>
#include <string_view>

#include "cpp/python/bindings.h"

namespace npusim::python {
namespace {

using serve::Event, serve::TokenLogprob;

enum : uint8_t { kStop = 1, kLength = 2, kLogprobs = 4, kPromptLogprobs = 8, kError = 16 };

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_tokens(std::string& to, const Event& event) {
  for (const int64_t token : event.tokens) put(to, static_cast<int32_t>(token));
}

void put_records(std::string& to, const std::vector<TokenLogprob>& records) {
  put(to, static_cast<uint32_t>(records.size()));
  for (const TokenLogprob& of : records) {
    put(to, static_cast<int32_t>(of.token));
    put(to, static_cast<uint32_t>(of.top.size()));
    put(to, of.logprob);
    for (const auto& [token, logprob] : of.top) {
      put(to, static_cast<int32_t>(token));
      put(to, logprob);
    }
  }
}

void put_text(std::string& to, std::string_view text) {
  put(to, static_cast<uint32_t>(text.size()));
  to += text;
}

bool is_plain(const Event& event) {
  return !event.is_last() && event.logprobs.empty() && !event.prompt_logprobs.has_value();
}

uint8_t facts_of(const Event& event) {
  uint8_t facts = 0;
  if (event.ending.has_value()) facts |= *event.ending == serve::Ending::kStop ? kStop : kLength;
  if (!event.logprobs.empty()) facts |= kLogprobs;
  if (event.prompt_logprobs.has_value()) facts |= kPromptLogprobs;
  if (event.error.has_value()) facts |= kError;
  return facts;
}

void put_other(std::string& to, const Event& event) {
  put(to, event.request);
  put(to, static_cast<uint32_t>(event.tokens.size()));
  put(to, facts_of(event));
  put_tokens(to, event);
  if (!event.logprobs.empty()) put_records(to, event.logprobs);
  if (event.prompt_logprobs.has_value()) put_records(to, *event.prompt_logprobs);
  if (!event.error.has_value()) return;
  put_text(to, class_of(event.error->code()));
  put_text(to, event.error->what());
}

}  // namespace

std::string pack_events(const std::vector<Event>& events) {
  if (events.empty()) return {};
  std::string requests, counts, tokens, others;
  for (const Event& event : events) {
    if (!is_plain(event)) {
      put_other(others, event);
      continue;
    }
    put(requests, event.request);
    put(counts, static_cast<uint32_t>(event.tokens.size()));
    put_tokens(tokens, event);
  }
  std::string packed;
  packed.reserve(2 * sizeof(uint32_t) + requests.size() + counts.size() + tokens.size() +
                 others.size());
  put(packed, static_cast<uint32_t>(counts.size() / sizeof(uint32_t)));
  put(packed, static_cast<uint32_t>(tokens.size() / sizeof(int32_t)));
  return packed += requests + counts + tokens + others;
}

}  // namespace npusim::python
