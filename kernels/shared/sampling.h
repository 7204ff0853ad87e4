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
// static: a file compiled for an instruction set keeps its own. C++14; the types of integers stand
// before it, and where there is no double, `Binary64`, which computes the same bits.
#pragma once

#ifdef __METAL_VERSION__
#define NPUSIM_CONSTANT constant constexpr
#define NPUSIM_LOCAL thread
#define NPUSIM_BITS_AS(type, value) as_type<type>(value)
#define NPUSIM_REAL(bits) binary64(bits)
#else
#define NPUSIM_CONSTANT constexpr
#define NPUSIM_LOCAL
#define NPUSIM_BITS_AS(type, value) __builtin_bit_cast(type, value)
#define NPUSIM_REAL(bits) __builtin_bit_cast(double, bits)
#endif

namespace npusim {
namespace sampling {

#ifdef __METAL_VERSION__
typedef Binary64 Real;
#else
typedef double Real;
#endif

// As a program takes them: float64[5]. Values out of range switch a step off.
struct Options {
  Real temperature;         // > 0; else the highest score is taken
  Real top_k;               // >= 1; else all tokens
  Real top_p;               // < 1; else all tokens
  Real min_p;               // > 0; else all tokens
  Real repetition_penalty;  // 1: none
};

NPUSIM_CONSTANT float kLowestScore = -3.40282347e+38f;  // that is finite
NPUSIM_CONSTANT uint64_t kStep = 0x9E3779B97F4A7C15;    // of SplitMix64's state
NPUSIM_CONSTANT uint64_t kOne = uint64_t{1} << 32;      // the weight of the highest score
#ifdef __METAL_VERSION__
NPUSIM_CONSTANT float kInfiniteScore = INFINITY;
#else
NPUSIM_CONSTANT float kInfiniteScore = __builtin_bit_cast(float, 0x7f800000U);
#endif

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
NPUSIM_CONSTANT uint32_t kNoKey = 0x007fffff;  // of -inf: keys up to here are never chosen
static inline uint32_t key_of(float score) {
#ifdef __METAL_VERSION__  // which may take the smallest numbers for zeros, but not their bits
  const uint32_t given = NPUSIM_BITS_AS(uint32_t, score), size = given & 0x7fffffffU;
  if (size > 0x7f800000U) return 0;
  const uint32_t bits = size == 0 ? 0 : given;
#else
  if (score != score) return 0;
  const auto bits = NPUSIM_BITS_AS(uint32_t, score == 0 ? 0.0f : score);
#endif
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}
static inline float score_of(uint32_t key) {
  return NPUSIM_BITS_AS(float, key >> 31 ? key & 0x7fffffffU : ~key);
}

// What a distance between scores is multiplied by to count steps of 2^-24 halvings.
static inline float halvings(Real temperature) {
  return static_cast<float>(NPUSIM_REAL(0x41771547652B82FE) / temperature);  // 2^24 / log(2)
}

// Of a fraction in 2^-32 and a number in 2^-31.
static inline uint32_t times(NPUSIM_LOCAL const uint64_t& fraction, uint32_t p) {
  return static_cast<uint32_t>(p * fraction >> 32);
}

// 2^(32 - distance * scale / 2^24), rounded down; `distance` >= 0. The fraction of the exponent
// goes through a polynomial, fitted by least squares to (1 - 2^-f) / f.
static inline uint64_t weight_of(float distance, float scale) {
  const float steps = distance * scale;
  const bool counts = steps < 553648128.0f;  // 33 halvings
  const auto halved = static_cast<uint32_t>(counts ? steps : 0.0f);
  const uint64_t f = (halved & 0xffffffU) << 8;  // in 2^-32; the coefficients are in 2^-31
  uint32_t p = 316565 - times(f, 23325);
  p = 2851892 - times(f, p);
  p = 20649629 - times(f, p);
  p = 119192922 - times(f, p);
  p = 515882353 - times(f, p);
  p = 1488522230 - times(f, p);
  p = 0x80000000U - times(f, p);
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
static inline int64_t kept_count(NPUSIM_LOCAL const Options& options, int64_t count) {
  const Real k = options.top_k;
  const bool counts = k >= static_cast<Real>(1) && k < static_cast<Real>(count);
  return counts ? static_cast<int64_t>(k) : 0;
}
// The least weight that top-p keeps of a total, at least 1; 0: all of it.
static inline uint64_t nucleus(NPUSIM_LOCAL const Options& options, uint64_t total) {
  if (!(options.top_p < static_cast<Real>(1))) return 0;
  const Real wanted = options.top_p * static_cast<Real>(total);
  const uint64_t whole = wanted > static_cast<Real>(0) ? static_cast<uint64_t>(wanted) : 0;
  const uint64_t up = whole + (static_cast<Real>(whole) < wanted ? 1 : 0);
  return up < 1 ? 1 : (up > total ? total : up);
}
// The least weight that min-p keeps.
static inline uint64_t least_weight(NPUSIM_LOCAL const Options& options) {
  const Real one = static_cast<Real>(1);
  if (!(options.min_p > static_cast<Real>(0))) return 1;
  const Real wanted = (options.min_p < one ? options.min_p : one) * static_cast<Real>(kOne);
  const uint64_t whole = static_cast<uint64_t>(wanted);
  const uint64_t up = whole + (static_cast<Real>(whole) < wanted ? 1 : 0);
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

}  // namespace sampling
}  // namespace npusim
