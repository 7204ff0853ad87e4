// Choosing the next token from the scores of all tokens, as kernels/shared/sampling.h says; a
// program's method `generate` chooses the same ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/shared/sample_serial.h"

namespace npusim {

struct SamplingOptions {
  double temperature = 0.0;         // 0: greedy
  int64_t top_k = 0;                // 0: all tokens
  double top_p = 1.0;               // in (0, 1]
  double min_p = 0.0;               // in [0, 1]
  double repetition_penalty = 1.0;  // > 0; above 1 it disfavours what was said
  uint64_t seed = 0;

  // Throws Error(kLimit) that names every option out of its range.
  void check() const;
};

// The natural logarithm of the probability of `token` among the scores; 0 for one that is not
// there.
double log_probability(std::span<const float> scores, int64_t token);

// SplitMix64.
class RandomBits {
 public:
  explicit RandomBits(uint64_t seed) noexcept : state_(seed) {}
  uint64_t next() noexcept { return sampling::mixed(state_ += sampling::kStep); }
  double unit() noexcept;  // in [0, 1)
  uint64_t state() const noexcept { return state_; }

 private:
  uint64_t state_;
};

// What a device needs to choose as a sampler would.
struct DeviceSampling {
  sampling::Options options;
  uint64_t seed;  // of a draw after no tokens; each token more is a step of SplitMix64

  bool operator==(const DeviceSampling& other) const noexcept;
};

// What a choice needs room for; samplers that choose one after the other may share it.
struct SamplingRoom {
  std::vector<float> scores;  // after the penalty
  std::vector<uint32_t> maxima;
  std::vector<sampling::Candidate> candidates;
};

// Not thread-safe. A copy continues as the original would.
class Sampler {
 public:
  // Throws as SamplingOptions::check.
  explicit Sampler(const SamplingOptions& options);

  // Returns the next token. `history` are the tokens so far, for the repetition penalty; those
  // outside `logits` are ignored. Throws Error(kData) when no score is above -inf.
  // After the first call with a vocabulary of that size, calls allocate nothing.
  int64_t sample(std::span<const float> logits, std::span<const int64_t> history) {
    return sample(logits, history, room_);
  }
  // The same in room that is not the sampler's own.
  int64_t sample(std::span<const float> logits, std::span<const int64_t> history,
                 SamplingRoom& room);

  // What makes a device's next choice, after `length` tokens, the sampler's own; accept() then
  // goes on after it, with the token that was chosen or -1: it throws as sample.
  DeviceSampling on_device(int64_t length) const noexcept;
  void accept(int64_t token, int64_t vocabulary);

  const SamplingOptions& options() const noexcept { return options_; }

 private:
  std::span<const float> penalised(std::span<const float> logits, std::span<const int64_t> history,
                                   SamplingRoom& room) const;
  bool draws() const noexcept { return options_.temperature > 0; }
  sampling::Options numbers() const noexcept;

  SamplingOptions options_;
  RandomBits random_;
  SamplingRoom room_;
};

}  // namespace npusim
