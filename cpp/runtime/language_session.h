// One conversation with a language model: the tokens so far, and the caches they left.
//
// Feeding is lazy. A token that was sampled, and the last one after rewind, waits until somebody
// asks for what comes after it; it then runs together with what was appended since. So a chain of
// step() costs one decode a token, and none for the last. `position` counts all tokens, those
// that wait included.
//
// Where the program has the method `generate`, a step is one run of it: the last token waits on the
// device already, and only the next one comes to the host. Told that more steps follow, a step
// starts the run of the next one before it returns, on devices that have a queue. A run that turns
// out to be ahead of what the session does next is of no account: it has written rows after those
// in use, and what it left in the states is written anew.
//
// Invariants
//  1. The caches hold the rows of the first fed_ tokens; what lies after them is meaningless.
//  2. 0 <= fed_ <= tokens_.size() <= max_context. logits_ are those after the last token when
//     fed_ == tokens_.size() > 0, and meaningless otherwise.
//  3. A call that throws leaves the tokens as they were.
//  4. Recurrent states hold what the first recurred_ tokens made of them (-1: nobody knows). A run
//  at
//     position 0 does not read them; any other run needs them to be of all tokens before it. Where
//     they are of others, after a rewind or a failure, all tokens are fed anew.
//  5. After all that is queued, the states hold: device_position_; the token with the number
//     device_token_ (-1: another); the first history_ tokens of all (never more than there are).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "cpp/runtime/generate_run.h"
#include "cpp/runtime/language_model.h"
#include "cpp/runtime/sampler.h"
#include "cpp/runtime/state.h"
#include "cpp/runtime/turn.h"

namespace npusim {

// One thread at a time: a second one gets Error(kBusy).
class LanguageSession {
 public:
  explicit LanguageSession(std::shared_ptr<LanguageModel> model);

  // Puts tokens after those there are and feeds them, in chunks. Throws Error(kLimit) for a token
  // outside the vocabulary or more tokens than the context holds, and what runs throw.
  void append(std::span<const int64_t> tokens);
  // As append, but leaves the tokens waiting: for callers that watch each run (see advance).
  void extend(std::span<const int64_t> tokens);
  // Feeds what one run of the program takes. Returns whether tokens still wait.
  bool advance();

  // The scores of the next token; feeds what waits. Valid until the session's next call. Throws
  // Error(kLimit) when there are no tokens yet.
  std::span<const float> logits();
  // Draws the next token and puts it after the others. `more`: the caller means to go on with the
  // same sampler. Throws Error(kLimit) when the context is full, and as logits and Sampler::sample.
  int64_t step(Sampler& sampler, bool more = false);
  // As advance, but feeds only what has to be fed before a step has but one run to do. Returns
  // whether there is more of that.
  bool advance_to_step();

  // Another session that continues from here on its own; copies the rows in use.
  std::unique_ptr<LanguageSession> fork() const;
  // Goes back to when there were `position` tokens. Costs nothing; the last token left is fed
  // again when its logits are asked for, and where there are recurrent states, all that are left.
  // Throws Error(kLimit).
  void rewind(int64_t position);
  void reset() { rewind(0); }

  // Writes the tokens, the rows in use and the logits as a safetensors file, whole or not at all.
  void save(const std::filesystem::path& path) const;
  // Replaces the content by what save wrote. The session is as it was when this throws:
  // Error(kFormat) for damaged files and sessions of another program, Error(kIo). That the weights
  // are those of the saving session is the caller's to ensure.
  void load(const std::filesystem::path& path);

  int64_t position() const noexcept { return static_cast<int64_t>(tokens_.size()); }
  const std::vector<int64_t>& tokens() const noexcept { return tokens_; }
  const std::shared_ptr<LanguageModel>& model() const noexcept { return model_; }

 private:
  bool waits() const noexcept { return fed_ < position(); }
  int64_t waiting_before_step() const noexcept;
  void extend_checked(std::span<const int64_t> tokens);
  bool advance_once();
  void feed_all();
  std::span<const float> scores();
  int64_t generate(Sampler& sampler, bool more);
  void prepare_states(const Sampler& sampler);
  void drop_runs();
  void begin_anew_if_needed() noexcept;
  void cut(int64_t position);

  std::shared_ptr<LanguageModel> model_;
  std::shared_ptr<State> state_;
  std::vector<int64_t> tokens_;
  int64_t fed_ = 0;
  int64_t device_position_ = 0;  // -1: unknown
  int64_t device_token_ = -1;
  int64_t history_ = 0;
  int64_t recurred_ = 0;
  std::unique_ptr<GenerateRuns> runs_;  // null until a step needs them
  std::vector<float> logits_;
  mutable TurnFlag running_{0};
};

}  // namespace npusim
