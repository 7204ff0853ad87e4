// Choosing a request's next token from the model's scores, as its options say.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cpp/runtime/sampler.h"
#include "cpp/serve/request.h"

namespace npusim::serve {

// What choices need room for, whosever they are.
struct ChoiceRoom {
  std::vector<float> scores;
  SamplingRoom sampling;
};

// Of one request. Scores are changed in this order: biases are added, the penalties of presence and
// frequency subtracted, what may not come goes to -inf; then as Sampler does it.
class TokenChoice {
 public:
  // `stops` are tokens that end the answer, ascending; `options` outlive this.
  TokenChoice(const RequestOptions& options, std::vector<int64_t> stops);

  // `scores`: of all tokens. `history`: prompt and answer. `mask` may be null. Throws Error(kData)
  // where no token is left.
  int64_t choose(std::span<const float> scores, std::span<const int64_t> history,
                 const TokenMask* mask, ChoiceRoom& room);

  // Whether the next token is that of the highest score as it is.
  bool takes_best() const;
  // Counts that token as chosen. Throws as choose for -1.
  int64_t choose_best(int64_t token, int64_t vocabulary);

  bool stops_at(int64_t token) const;
  int64_t chosen() const noexcept { return chosen_; }

 private:
  bool changes_scores(const TokenMask* mask) const;
  void change(std::span<float> scores, const TokenMask* mask) const;

  const RequestOptions& options_;
  std::vector<int64_t> stops_;
  Sampler sampler_;
  std::unordered_map<int64_t, int64_t> said_;  // how often; only where a penalty asks
  int64_t chosen_ = 0;
};

// The log-probability of a token and of the `count` most probable ones. float64; the softmax is
// that of the scores as they are.
TokenLogprob logprob_of(std::span<const float> scores, int64_t token, int64_t count);

}  // namespace npusim::serve
