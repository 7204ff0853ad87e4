// A language model on a device: a program whose methods `prefill` and `decode` share weights and
// grow a cache, as its metadata says (metadata.h).
//
//   prefill(tokens int64[1, chunk], length int64[1]) -> logits[1, 1, vocab] of token length - 1,
//                                                       unless the chunk is one token
//   prefill_<chunk>, the same for larger chunks, where the program has them
//   decode(tokens int64[1, 1])                       -> logits[1, 1, vocab]
//   generate(sampling float64[5], seed int64[1])     -> chosen int64[1], where the program has it
//
// All append at the state `position` and advance it by the tokens they took. `generate` appends the
// token of the state `token`, chooses the next one (kernels/shared/sampling.h) and leaves it there;
// the state `history` has a row for each token that it appended. The other states are caches, which
// get a row a token, and recurrent ones, which every token changes as a whole; at position 0 no
// method reads a recurrent state. The model itself is immutable; what was said is in sessions
// (language_session.h). Any number of them, on any threads, may share a model: their runs take
// turns on the device.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/platform/forks.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/metadata.h"
#include "cpp/runtime/program.h"
#include "cpp/runtime/state.h"
#include "cpp/runtime/weights.h"

namespace npusim {

// A cache as bytes: `outer` blocks of `capacity` rows, of which a session uses the first ones.
struct CacheLayout {
  const StateTensor* tensor;
  int64_t axis;
  int64_t outer, capacity, row_bytes;

  int64_t block_bytes() const { return capacity * row_bytes; }
};

class LanguageModel {
 public:
  // `weights` may be null when the program has none. Throws Error(kInput) for a program that is no
  // language model, Error(kFormat) for one whose methods or states contradict its metadata, and
  // what Executor throws.
  LanguageModel(std::shared_ptr<const Program> program, std::shared_ptr<Device> device,
                std::shared_ptr<const Weights> weights);
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;

  // Opens a .npubin file and a checkpoint (what Checkpoint::open takes), all in one.
  static std::shared_ptr<LanguageModel> open(const std::filesystem::path& program,
                                             const std::filesystem::path& weights,
                                             std::shared_ptr<Device> device);

  const LanguageModelFacts& facts() const noexcept { return facts_; }
  const std::vector<CacheLayout>& caches() const noexcept { return caches_; }
  // States that hold what all tokens before the position have made of them, and no others.
  const std::vector<const StateTensor*>& recurrent() const noexcept { return recurrent_; }
  const StateTensor& position() const noexcept { return *position_; }
  bool generates() const noexcept { return token_ != nullptr; }
  // The states of `generate`. Throws Error(kInput) for a model that has it not.
  const StateTensor& token() const;
  const StateTensor& history() const;
  const std::shared_ptr<const Program>& program() const noexcept { return program_; }
  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  const std::shared_ptr<const Weights>& weights() const noexcept { return weights_; }

  // How many of `waiting` tokens the next run takes when `position` tokens are fed
  // (cpp/runtime/prompt_runs.h).
  int64_t next_run(int64_t position, int64_t waiting) const noexcept;

  // Feeds tokens, as many as next_run says, and writes the scores of the token after them (unless
  // `logits` is empty: else it holds vocab_size numbers).
  // Allocates nothing. Throws Error(kInput) for no tokens, more than the largest chunk or room for
  // another number of scores, and what Executor::run throws; the state's content is then undefined
  // from its position on, and that of recurrent states altogether.
  void feed(State& state, std::span<const int64_t> tokens, std::span<float> logits);

  // Starts a run of `generate` (see GenerateRuns): the caller keeps the memory until it has ended.
  // settle_generate waits for the latest one, and throws what Executor::run would have thrown.
  // Throws Error(kInput) for a model without `generate`, or memory that is too small.
  void start_generate(State& state, const Memory& sampling, const Memory& seed,
                      const Memory& chosen);
  void settle_generate();

 private:
  // A method with the memory of its inputs and outputs.
  struct Call {
    size_t method = 0;
    int64_t tokens = 0;  // at most, in a run
    DType logits_dtype{};
    std::shared_ptr<Memory> tokens_memory, length_memory, logits_memory;
    std::vector<Binding> inputs, outputs;
  };

  void check_facts() const;
  void place_states();
  void find_generate();
  Call make_call(const std::string& name, int64_t tokens, bool has_length);
  Call& call_for(size_t tokens);
  void check_feed(size_t tokens, size_t logits) const;
  void check_generates() const;

  std::shared_ptr<const Program> program_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<const Weights> weights_;
  std::vector<StateTensor> states_;
  LanguageModelFacts facts_;
  const StateTensor* position_ = nullptr;
  const StateTensor *token_ = nullptr, *history_ = nullptr;  // null: there is no `generate`
  std::vector<CacheLayout> caches_;
  std::vector<const StateTensor*> recurrent_;
  ForkSafeMutex turn_;  // guards all below
  Executor executor_;
  std::vector<Call> prefills_;  // the smallest chunk first; none of a single token
  Call decode_;
  size_t generate_ = 0;  // the method
};

}  // namespace npusim
