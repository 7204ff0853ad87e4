#include "cpp/runtime/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr size_t kBlock = 64, kLanes = 8;
constexpr size_t kFew = 64;  // candidates that are sorted rather than split further

// The highest of a block; NaN counts as -inf. In lanes, so that the compiler may use vectors.
float highest_of(std::span<const float> block) {
  std::array<float, kLanes> lanes;
  lanes.fill(kLowest);
  size_t i = 0;
  for (; i + kLanes <= block.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float score = block[i + lane];
      lanes[lane] = score > lanes[lane] ? score : lanes[lane];
    }
  }
  for (; i < block.size(); ++i) lanes[0] = block[i] > lanes[0] ? block[i] : lanes[0];
  return *std::max_element(lanes.begin(), lanes.end());
}

std::span<const float> block_of(std::span<const float> scores, size_t index) {
  const size_t begin = index * kBlock;
  return scores.subspan(begin, std::min(kBlock, scores.size() - begin));
}

// The k-th highest value, 1 <= k <= values.size(); shuffles them.
float kth_highest(std::vector<float>& values, size_t k) {
  const auto kth = values.begin() + static_cast<ptrdiff_t>(k) - 1;
  std::nth_element(values.begin(), kth, values.end(), std::greater<>());
  return *kth;
}

}  // namespace

void SamplingOptions::check() const {
  std::string wrong;
  const auto require = [&](bool holds, const char* name, const std::string& value,
                           const char* range) {
    if (holds) return;
    wrong +=
        (wrong.empty() ? "" : "; ") + std::string(name) + " is " + value + ", it must be " + range;
  };
  const auto text = [](double value) { return std::to_string(value); };
  require(std::isfinite(temperature) && temperature >= 0, "temperature", text(temperature),
          "0 (greedy) or more");
  require(top_k >= 0, "top_k", std::to_string(top_k), "0 (all tokens) or more");
  require(top_p > 0 && top_p <= 1, "top_p", text(top_p), "above 0 and at most 1");
  require(min_p >= 0 && min_p <= 1, "min_p", text(min_p), "between 0 and 1");
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty",
          text(repetition_penalty), "above 0 (1: none)");
  if (!wrong.empty()) throw Error(ErrorCode::kLimit, "The sampling options: " + wrong + ".");
}

uint64_t RandomBits::next() noexcept {
  uint64_t bits = state_ += 0x9E3779B97F4A7C15;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
  return bits ^ bits >> 31;
}

double RandomBits::unit() noexcept {
  return static_cast<double>(next() >> 11) * 0x1p-53;
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  options_.check();
}

int64_t Sampler::sample(std::span<const float> logits, std::span<const int64_t> history) {
  const std::span<const float> scores = penalised(logits, history);
  find_highest(scores);
  if (highest_ == kLowest) {
    throw Error(ErrorCode::kData, "no token can be chosen: all " + std::to_string(scores.size()) +
                                      " scores are NaN or -inf; check the weights");
  }
  if (options_.temperature == 0) return best_;
  collect(scores);
  keep_top_k();
  keep_top_p();
  return draw();
}

std::span<const float> Sampler::penalised(std::span<const float> logits,
                                          std::span<const int64_t> history) {
  if (options_.repetition_penalty == 1.0) return logits;
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  scores_.assign(logits.begin(), logits.end());
  for (const int64_t token : history) {
    if (token < 0 || token >= static_cast<int64_t>(logits.size())) continue;
    const float score = logits[static_cast<size_t>(token)];  // once, however often it was said
    const float changed = score > 0 ? score / penalty : score * penalty;
    const bool lost = changed == kLowest && score > kLowest;
    scores_[static_cast<size_t>(token)] = lost ? std::numeric_limits<float>::lowest() : changed;
  }
  return scores_;
}

void Sampler::find_highest(std::span<const float> scores) {
  maxima_.resize((scores.size() + kBlock - 1) / kBlock);
  highest_ = kLowest;
  size_t where = 0;
  for (size_t i = 0; i < maxima_.size(); ++i) {
    maxima_[i] = highest_of(block_of(scores, i));
    if (maxima_[i] > highest_) {
      highest_ = maxima_[i];
      where = i;
    }
  }
  if (highest_ == kLowest) return;
  const auto block = block_of(scores, where);
  best_ = static_cast<int64_t>(where * kBlock) +
          (std::find(block.begin(), block.end(), highest_) - block.begin());
}

// Candidates in the order of their tokens: the top k and perhaps more. k blocks reach the k-th
// highest maximum of all, so at least k scores do, and only few beside them.
void Sampler::collect(std::span<const float> scores) {
  const auto k = static_cast<uint64_t>(options_.top_k);
  float least = std::numeric_limits<float>::lowest();
  if (k > 0 && k < maxima_.size()) {
    selection_.assign(maxima_.begin(), maxima_.end());
    least = std::max(least, kth_highest(selection_, k));
  }
  if (highest_ == std::numeric_limits<float>::infinity()) least = highest_;
  candidates_.clear();
  candidates_.reserve(scores.size());
  selection_.reserve(scores.size());
  for (size_t i = 0; i < maxima_.size(); ++i) {
    if (!(maxima_[i] >= least)) continue;
    const auto block = block_of(scores, i);
    for (size_t j = 0; j < block.size(); ++j) {
      if (block[j] >= least) {
        candidates_.push_back({block[j], static_cast<int32_t>(i * kBlock + j), 0});
      }
    }
  }
}

void Sampler::keep_top_k() {
  const auto k = static_cast<uint64_t>(options_.top_k);
  if (k == 0 || k >= candidates_.size()) return;
  selection_.clear();
  for (const Candidate& candidate : candidates_) selection_.push_back(candidate.score);
  const float least = kth_highest(selection_, k);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.score < least; });
}

// Weighs the candidates and drops what lies outside the nucleus. Selects by halves: each split
// looks at one half of what the last one left.
void Sampler::keep_top_p() {
  double total = 0;
  const bool infinite = std::isinf(highest_);
  for (Candidate& candidate : candidates_) {
    const double distance = static_cast<double>(candidate.score) - highest_;
    candidate.weight = infinite ? 1 : std::exp(distance / options_.temperature);
    total += candidate.weight;
  }
  if (options_.top_p >= 1) return;
  const double wanted = options_.top_p * total;
  // Together, candidates lighter than this weigh less than what the nucleus leaves out.
  const double slight = (total - wanted) / static_cast<double>(candidates_.size());
  order_.clear();
  order_.reserve(candidates_.capacity());
  for (const Candidate& c : candidates_) {
    if (c.weight >= slight || c.score == highest_) order_.push_back(c);
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  };
  auto begin = order_.begin(), end = order_.end();
  double reached = 0;
  while (end - begin > static_cast<ptrdiff_t>(kFew)) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    double half = 0;
    for (auto at = begin; at != middle; ++at) half += at->weight;
    if (reached + half >= wanted) {
      end = middle;
    } else {
      reached += half;
      begin = middle;
    }
  }
  std::sort(begin, end, before);
  while (begin + 1 < end && reached + begin->weight < wanted) reached += begin++->weight;
  const Candidate last = *begin;
  std::erase_if(candidates_, [&](const Candidate& c) { return before(last, c); });
}

int64_t Sampler::draw() {
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < options_.min_p; });
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double left = random_.unit() * total;
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return best_;  // rounding has eaten the last of `left`
}

}  // namespace npusim
