#include "cpp/serve/token_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace npusim::serve {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool allows(const TokenMask& mask, size_t token) {
  return token / 32 < mask.size() && (mask[token / 32] >> (token % 32) & 1) != 0;
}

// As choices have it: NaN is never chosen, and infinite scores leave nothing to finite ones.
class Softmax {
 public:
  explicit Softmax(std::span<const float> scores) : scores_(scores) {
    for (const float score : scores) highest_ = score > highest_ ? score : highest_;
    double total = 0;
    for (const float score : scores) total += std::isnan(score) ? 0 : std::exp(below(score));
    log_total_ = std::log(total);
  }
  double logprob(int64_t token) const {
    const float score = scores_[static_cast<size_t>(token)];
    return std::isnan(score) ? -HUGE_VAL : below(score) - log_total_;
  }

 private:
  double below(float score) const {
    return score == highest_ ? 0 : static_cast<double>(score) - static_cast<double>(highest_);
  }
  std::span<const float> scores_;
  float highest_ = kNever;
  double log_total_ = 0;
};

}  // namespace

TokenChoice::TokenChoice(const RequestOptions& options, std::vector<int64_t> stops)
    : options_(options), stops_(std::move(stops)), sampler_(options.sampling) {}

bool TokenChoice::stops_at(int64_t token) const {
  return std::ranges::binary_search(stops_, token);
}

bool TokenChoice::changes_scores(const TokenMask* mask) const {
  return mask != nullptr || !options_.logit_bias.empty() || !said_.empty() ||
         chosen_ < options_.min_tokens;
}

void TokenChoice::change(std::span<float> scores, const TokenMask* mask) const {
  for (const auto& [token, bias] : options_.logit_bias) scores[static_cast<size_t>(token)] += bias;
  for (const auto& [token, count] : said_) {
    const double penalty =
        options_.presence_penalty + options_.frequency_penalty * static_cast<double>(count);
    scores[static_cast<size_t>(token)] -= static_cast<float>(penalty);
  }
  if (chosen_ < options_.min_tokens) {
    for (const int64_t stop : stops_) scores[static_cast<size_t>(stop)] = kNever;
  }
  if (mask == nullptr) return;
  for (size_t token = 0; token < scores.size(); ++token) {
    if (!allows(*mask, token)) scores[token] = kNever;
  }
}

int64_t TokenChoice::choose(std::span<const float> scores, std::span<const int64_t> history,
                            const TokenMask* mask, ChoiceRoom& room) {
  if (changes_scores(mask)) {
    room.scores.assign(scores.begin(), scores.end());
    change(room.scores, mask);
    scores = room.scores;
  }
  const int64_t token = sampler_.sample(scores, history, room.sampling);
  ++chosen_;
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) ++said_[token];
  return token;
}

bool TokenChoice::takes_best() const {
  const SamplingOptions& sampling = options_.sampling;
  const bool changes = options_.presence_penalty != 0 || options_.frequency_penalty != 0 ||
                       sampling.repetition_penalty != 1.0 || options_.masked;
  return sampling.temperature == 0 && !changes && !changes_scores(nullptr);
}

int64_t TokenChoice::choose_best(int64_t token, int64_t vocabulary) {
  sampler_.accept(token, vocabulary);
  ++chosen_;
  return token;
}

TokenLogprob logprob_of(std::span<const float> scores, int64_t token, int64_t count) {
  const Softmax softmax(scores);
  TokenLogprob made{.token = token, .logprob = softmax.logprob(token), .top = {}};
  const auto most = std::min(count, static_cast<int64_t>(scores.size()));
  if (most <= 0) return made;
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int64_t a, int64_t b) {
    const uint32_t key_a = sampling::key_of(scores[static_cast<size_t>(a)]);
    const uint32_t key_b = sampling::key_of(scores[static_cast<size_t>(b)]);
    return key_a != key_b ? key_a > key_b : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + most, order.end(), before);
  order.resize(static_cast<size_t>(most));
  for (const int64_t of : order) made.top.emplace_back(of, softmax.logprob(of));
  return made;
}

}  // namespace npusim::serve
