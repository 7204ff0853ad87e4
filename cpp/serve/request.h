// One request: what it asks, and how far it is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpp/runtime/error.h"
#include "cpp/runtime/sampler.h"
#include "cpp/serve/page_pool.h"
#include "cpp/serve/prefix_index.h"
#include "cpp/serve/token_list.h"

namespace npusim::serve {

using RequestId = uint64_t;

struct RequestOptions {
  SamplingOptions sampling;
  int64_t max_tokens = -1;           // new ones; -1: as many as the context holds; 0: none
  int64_t min_tokens = 0;            // before so many, no stop token is chosen
  std::vector<int64_t> stop_tokens;  // besides the model's own
  bool ignore_eos = false;           // the model's own do not stop
  double presence_penalty = 0;       // subtracted from the scores of tokens that were chosen
  double frequency_penalty = 0;      // the same, times how often
  std::vector<std::pair<int64_t, float>> logit_bias;  // added to the scores of tokens
  int64_t logprobs = -1;         // of each token and of so many of the most probable; -1: none
  int64_t prompt_logprobs = -1;  // the same of the prompt's tokens but the first
  int64_t priority = 0;          // the smaller, the sooner
  std::string salt;              // only requests with the same one share pages
  bool prefix_cache = true;      // may read pages that others have computed
  bool masked = false;           // each token waits for Batch::allow
  // A request with the same beginning, which is computed once: as long as that one's prompt is not,
  // this one waits. 0, or one that has ended: for nobody.
  RequestId follows = 0;
};

// How probable a token was, by the model's own scores: natural logarithms.
struct TokenLogprob {
  int64_t token;
  double logprob;
  std::vector<std::pair<int64_t, double>> top;  // the most probable first; equal ones by number
};

enum class Ending : uint8_t {
  kStop,    // the last token is a stop token
  kLength,  // max_tokens were made, or the context is full
};
constexpr std::string_view ending_name(Ending ending) {
  return ending == Ending::kStop ? "stop" : "length";
}

// What happened to a request since its last event. One with an ending or an error is the last.
struct Event {
  RequestId request = 0;
  TokenList tokens = {};
  std::vector<TokenLogprob> logprobs = {};  // one a token, where they were asked for
  // All together, with the first token or the ending, where they were asked for.
  std::optional<std::vector<TokenLogprob>> prompt_logprobs = {};
  std::optional<Ending> ending = {};
  std::optional<Error> error = {};
  int64_t cached_tokens = 0;  // of the prompt, found in pages when it was first admitted

  bool is_last() const noexcept { return ending.has_value() || error.has_value(); }
  // Puts behind this what came later.
  void add(Event later);
};

// Bits by token, the lowest of each word first: those that may come next.
using TokenMask = std::vector<uint32_t>;
// Of bytes by token, which are not 0 for those that may.
TokenMask mask_of(std::span<const uint8_t> may);

}  // namespace npusim::serve
