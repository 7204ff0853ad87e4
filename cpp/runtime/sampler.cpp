#include "cpp/runtime/sampler.h"

#include <cmath>
#include <string>

#include "cpp/runtime/error.h"

namespace npusim {

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

double RandomBits::unit() noexcept {
  return static_cast<double>(next() >> 11) * 0x1p-53;
}

bool DeviceSampling::operator==(const DeviceSampling& other) const noexcept {
  const sampling::Options &a = options, &b = other.options;
  return seed == other.seed && a.temperature == b.temperature && a.top_k == b.top_k &&
         a.top_p == b.top_p && a.min_p == b.min_p && a.repetition_penalty == b.repetition_penalty;
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  options_.check();
}

int64_t Sampler::sample(std::span<const float> logits, std::span<const int64_t> history,
                        SamplingRoom& room) {
  const std::span<const float> scores = penalised(logits, history, room);
  const auto count = static_cast<int64_t>(scores.size());
  room.maxima.resize(static_cast<size_t>(sampling::blocks_of(count)));
  if (draws()) room.candidates.resize(scores.size());
  const RandomBits before = random_;
  const int64_t token =
      sampling::choose(scores.data(), count, numbers(), random_.next(),
                       {.maxima = room.maxima.data(), .candidates = room.candidates.data()});
  random_ = before;
  accept(token, count);
  return token;
}

DeviceSampling Sampler::on_device(int64_t length) const noexcept {
  if (!draws()) return {.options = numbers(), .seed = 0};
  const auto steps = static_cast<uint64_t>(length) - 1;
  return {.options = numbers(), .seed = random_.state() - steps * sampling::kStep};
}

void Sampler::accept(int64_t token, int64_t vocabulary) {
  if (token < 0) {
    throw Error(ErrorCode::kData, "no token can be chosen: all " + std::to_string(vocabulary) +
                                      " scores are NaN or -inf; check the weights");
  }
  if (draws()) random_.next();
}

std::span<const float> Sampler::penalised(std::span<const float> logits,
                                          std::span<const int64_t> history,
                                          SamplingRoom& room) const {
  if (options_.repetition_penalty == 1.0) return logits;
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  room.scores.assign(logits.begin(), logits.end());
  for (const int64_t token : history) {
    if (token < 0 || token >= static_cast<int64_t>(logits.size())) continue;
    const auto at = static_cast<size_t>(token);  // once, however often it was said
    room.scores[at] = sampling::penalised(logits[at], penalty);
  }
  return room.scores;
}

sampling::Options Sampler::numbers() const noexcept {
  return {.temperature = options_.temperature,
          .top_k = static_cast<double>(options_.top_k),
          .top_p = options_.top_p,
          .min_p = options_.min_p,
          .repetition_penalty = options_.repetition_penalty};
}

double log_probability(std::span<const float> scores, int64_t token) {
  if (token < 0 || token >= static_cast<int64_t>(scores.size())) return 0;
  double highest = -HUGE_VAL, total = 0;
  for (const float score : scores) highest = score > highest ? score : highest;
  for (const float score : scores) total += std::exp(score - highest);
  return scores[static_cast<size_t>(token)] - highest - std::log(total);
}

}  // namespace npusim
