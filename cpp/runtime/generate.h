// Generating until something says stop. Tokens in, tokens out: text is the tokenizer's.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "cpp/runtime/language_session.h"
#include "cpp/runtime/sampler.h"

namespace npusim {

struct GenerationOptions {
  int64_t max_new_tokens = 0;  // 0: as many as the context holds
  bool stop_at_eos = true;     // at the end-of-text tokens of the program's metadata
  std::vector<int64_t> stop_tokens;
  std::vector<std::vector<int64_t>> stop_sequences;  // of new tokens; empty ones never match
};

enum class FinishReason {
  kLength,   // max_new_tokens were made
  kContext,  // the context is full
  kStop,     // a stop token or sequence ended the text
  kCaller,   // on_token returned false
};

std::string_view finish_reason_name(FinishReason reason);

struct Generation {
  std::vector<int64_t> tokens;  // those that made it stop are included
  FinishReason reason = FinishReason::kLength;
};

// Continues the session, which must have tokens. `on_token` sees each new token at once; generation
// ends when it returns false. Throws what LanguageSession::step throws; the session keeps the
// tokens made until then.
Generation generate(LanguageSession& session, Sampler& sampler, const GenerationOptions& options,
                    const std::function<bool(int64_t)>& on_token = {});

}  // namespace npusim
