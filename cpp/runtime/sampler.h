// Choosing the next token from the scores of all tokens.
//
// The order of operations is that of Hugging Face transformers:
//   1. repetition penalty: the score s of every token of the history becomes s / penalty where
//      s > 0, and s * penalty elsewhere;
//   2. temperature 0 takes the token of the highest score, and stops here; else s becomes s / T;
//   3. top-k keeps the k highest scores, and all that equal the lowest of them;
//   4. top-p keeps the smallest set of highest scores whose probability, among what top-k left,
//      reaches p; at least one token;
//   5. min-p keeps the tokens at least min_p times as probable as the most probable one;
//   6. one draw among what is left, in proportion to exp(s).
// Equal scores count in the order of their tokens, the lower one first. NaN and -inf are never
// chosen; +inf wins over all finite scores.
//
// The draws are those of SplitMix64 (Steele, Lea & Flood 2014) from the seed, its 53 high bits as a
// number in [0, 1): the same on every machine. Probabilities are computed in double precision; no
// step sorts the vocabulary, the time is linear in its size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

// SplitMix64.
class RandomBits {
 public:
  explicit RandomBits(uint64_t seed) noexcept : state_(seed) {}
  uint64_t next() noexcept;
  double unit() noexcept;  // in [0, 1)

 private:
  uint64_t state_;
};

// Not thread-safe. A copy continues as the original would.
class Sampler {
 public:
  // Throws as SamplingOptions::check.
  explicit Sampler(const SamplingOptions& options);

  // Returns the next token. `history` are the tokens so far, for the repetition penalty; those
  // outside `logits` are ignored. Throws Error(kData) when no score is above -inf.
  // After the first call with a vocabulary of that size, calls allocate nothing.
  int64_t sample(std::span<const float> logits, std::span<const int64_t> history);

  const SamplingOptions& options() const noexcept { return options_; }

 private:
  struct Candidate {
    float score;
    int32_t token;
    double weight;  // exp((score - highest) / temperature)
  };

  std::span<const float> penalised(std::span<const float> logits, std::span<const int64_t> history);
  void find_highest(std::span<const float> scores);
  void collect(std::span<const float> scores);
  void keep_top_k();
  void keep_top_p();
  int64_t draw();

  SamplingOptions options_;
  RandomBits random_;
  std::vector<float> scores_;     // after the penalty
  std::vector<float> maxima_;     // of blocks of scores
  std::vector<float> selection_;  // what partial selections shuffle
  std::vector<Candidate> candidates_, order_;
  float highest_ = 0;
  int64_t best_ = 0;
};

}  // namespace npusim
