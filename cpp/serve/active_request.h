// A request as the batch has it: what was asked, and how far it is.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cpp/serve/paged_cache.h"
#include "cpp/serve/request.h"
#include "cpp/serve/scheduler.h"
#include "cpp/serve/step_runner.h"
#include "cpp/serve/token_choice.h"
#include "cpp/serve/waiting_queue.h"

namespace npusim::serve {

// What a request may ask of a runner with such facts. Throws Error(kLimit) that names all that is
// wrong.
void check_request(const RunnerFacts& facts, std::span<const int64_t> tokens,
                   const RequestOptions& options);

// The beginning that a request has in common with one that has computed it, as far as it ends
// within a page.
struct SharedBeginning {
  PageMark page;       // that it ends in
  int64_t tokens = 0;  // all of it; the pages before are full
};

struct ActiveRequest {
  // Of a request that was checked.
  ActiveRequest(RequestId id, std::vector<int64_t> prompt, RequestOptions asked,
                const RunnerFacts& facts);
  ActiveRequest(const ActiveRequest&) = delete;
  ActiveRequest& operator=(const ActiveRequest&) = delete;

  RequestId id;
  RequestOptions options;
  std::vector<int64_t> tokens;  // prompt and answer
  int64_t prompt;               // how many of them are the prompt
  int64_t most;                 // tokens that there can be, the prompt included
  TokenChoice choice;
  Rank rank;

  int64_t slot = -1;          // -1: it waits
  PageTable table;            // empty while it waits
  int64_t scheduled = 0;      // tokens that have run since it was admitted, or are in a step
  bool was_admitted = false;  // at least once
  bool has_prompt = false;    // its prompt has been computed, at least once
  bool is_following = false;  // waits for the prompt of the one it follows, and not in the queue
  std::optional<SharedBeginning> beginning = {};  // with the one that it follows
  bool is_choosing = false;  // its next token is chosen when the step in flight ends
  bool has_ended = false;
  std::optional<TokenMask> mask;              // of the next token, if it is `masked`
  std::vector<TokenLogprob> prompt_logprobs;  // so far
  bool has_told_prompt = false;               // those have left in an event
  int64_t cached_tokens = 0;                  // when it was first admitted

  bool runs() const noexcept { return slot >= 0; }
  // Tokens, with the one that is being chosen.
  int64_t known() const noexcept;
  // Of those, how many can come to lie in pages: the last one of all is not computed.
  int64_t most_cached() const noexcept;
  // Whether the scores of each token of its prompt are still wanted.
  bool scores_prompt() const noexcept;
  // Whether it may read and enter pages of the prefix index.
  bool shares_pages() const noexcept;
  RunningLoad load() const noexcept;
};

}  // namespace npusim::serve
