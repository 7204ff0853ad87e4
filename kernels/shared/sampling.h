// Choosing the next token from the scores of all tokens: what every device computes, to the bit.
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
// Probabilities are integers in steps of 2^-32 of the highest one, within 2^-21 of exp(s), so sums
// do not depend on their order: given the same scores, options and random bits, all devices choose
// the same token. The draws are those of SplitMix64 (Steele, Lea & Flood 2014). Functions are
// static: a file compiled for an instruction set keeps its own.
#pragma once
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

namespace npusim::sampling {

// As a program takes them: float64[5]. Values out of range switch a step off.
struct Options {
  double temperature;         // > 0; else the highest score is taken
  double top_k;               // >= 1; else all tokens
  double top_p;               // < 1; else all tokens
  double min_p;               // > 0; else all tokens
  double repetition_penalty;  // 1: none
};

constexpr float kInfiniteScore = __builtin_bit_cast(float, 0x7f800000U);
constexpr float kLowestScore = __builtin_bit_cast(float, 0xff7fffffU);  // that is finite
constexpr uint64_t kStep = 0x9E3779B97F4A7C15;                          // of SplitMix64's state
constexpr uint64_t kOne = uint64_t{1} << 32;  // the weight of the highest score

static inline uint64_t mixed(uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
  return bits ^ bits >> 31;
}

static inline float penalised(float score, float penalty) {
  const float changed = score > 0 ? score / penalty : score * penalty;
  const bool lost = changed == -kInfiniteScore && score > -kInfiniteScore;
  return lost ? kLowestScore : changed;
}

// Scores as unsigned integers of the same order: 0 for NaN, -0 equal to 0.
constexpr uint32_t kNoKey = 0x007fffff;  // of -inf: keys up to here are never chosen
static inline uint32_t key_of(float score) {
  if (score != score) return 0;
  const auto bits = __builtin_bit_cast(uint32_t, score == 0 ? 0.0f : score);
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}
static inline float score_of(uint32_t key) {
  return __builtin_bit_cast(float, key >> 31 ? key & 0x7fffffffU : ~key);
}

// What a distance between scores is multiplied by to count steps of 2^-24 halvings.
static inline float halvings(double temperature) {
  constexpr double kLog2e = 1.4426950408889634;
  return static_cast<float>(kLog2e * 16777216.0 / temperature);
}

// 2^(32 - distance * scale / 2^24), rounded down; `distance` >= 0. The fraction of the exponent
// goes through a polynomial, fitted by least squares to (1 - 2^-f) / f.
static inline uint64_t weight_of(float distance, float scale) {
  const float steps = distance * scale;
  const bool counts = steps < 553648128.0f;  // 33 halvings
  const auto halved = static_cast<uint32_t>(counts ? steps : 0.0f);
  const uint64_t f = (halved & 0xffffffU) << 8;  // in 2^-32; the coefficients are in 2^-31
  const auto times = [f](uint32_t p) { return static_cast<uint32_t>(p * f >> 32); };
  uint32_t p = 316565 - times(23325);
  p = 2851892 - times(p);
  p = 20649629 - times(p);
  p = 119192922 - times(p);
  p = 515882353 - times(p);
  p = 1488522230 - times(p);
  p = 0x80000000U - times(p);
  const uint64_t weight = static_cast<uint64_t>(p) * 2 >> (halved >> 24);
  return distance == 0 ? kOne : (counts ? weight : 0);  // where scale is infinite, too
}
// The same from keys. Where the highest score is infinite, only such scores count: all others are
// infinitely far away. So is -inf, and NaN nowhere.
static inline uint64_t weight_of_key(uint32_t key, uint32_t highest, float scale) {
  const uint64_t weight = weight_of(score_of(highest) - score_of(key), scale);
  return key == highest ? kOne : weight;
}

// How many of `count` tokens top-k keeps at least; 0: all of them.
static inline int64_t kept_count(const Options& options, int64_t count) {
  const double k = options.top_k;
  return k >= 1 && k < static_cast<double>(count) ? static_cast<int64_t>(k) : 0;
}
// The least weight that top-p keeps of a total, at least 1; 0: all of it.
static inline uint64_t nucleus(const Options& options, uint64_t total) {
  if (!(options.top_p < 1)) return 0;
  const double wanted = options.top_p * static_cast<double>(total);
  const auto whole = wanted > 0 ? static_cast<uint64_t>(wanted) : 0;
  const uint64_t up = whole + (static_cast<double>(whole) < wanted ? 1 : 0);
  return up < 1 ? 1 : (up > total ? total : up);
}
// The least weight that min-p keeps.
static inline uint64_t least_weight(const Options& options) {
  if (!(options.min_p > 0)) return 1;
  const double wanted = (options.min_p < 1 ? options.min_p : 1) * static_cast<double>(kOne);
  const auto whole = static_cast<uint64_t>(wanted);
  const uint64_t up = whole + (static_cast<double>(whole) < wanted ? 1 : 0);
  return up < 1 ? 1 : up;
}
// A number in [0, total) from random bits, of which the 53 high ones count.
static inline uint64_t drawn(uint64_t bits, uint64_t total) {
  const uint64_t unit = bits >> 11 << 11;
  const uint64_t low = unit & 0xffffffffU, high = unit >> 32;
  const uint64_t total_low = total & 0xffffffffU, total_high = total >> 32;
  const uint64_t middle = high * total_low + (low * total_low >> 32);
  const uint64_t rest = low * total_high + (middle & 0xffffffffU);
  return high * total_high + (middle >> 32) + (rest >> 32);
}

}  // namespace npusim::sampling
