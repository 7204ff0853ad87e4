// The sampler through the C++ interface; its distributions are tested from Python, against NumPy.
#include "cpp/runtime/sampler.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpp/check.h"

namespace npusim::tests {
namespace {

void draws_the_published_sequence() {
  RandomBits bits(1234567);  // from the reference implementation of SplitMix64
  for (const uint64_t expected :
       {6457827717110365317u, 3203168211198807973u, 9817491932198370423u}) {
    check(bits.next() == expected, "SplitMix64");
  }
}

void copies_continue_alike() {
  const std::vector<float> flat(1000, 1.0f);
  Sampler one(SamplingOptions{.temperature = 1.0, .seed = 5});
  one.sample(flat, {});
  Sampler twin = one;
  for (int i = 0; i < 20; ++i) check(one.sample(flat, {}) == twin.sample(flat, {}), "a copy");
}

void survives_any_scores_and_options() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> odd = {kNan, kInf, -kInf, 0.0f, -0.0f, 1e-45f, 3e38f, -3e38f, 1.0f};
  RandomBits bits(1);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::vector<float> scores(1 + bits.next() % 200);
    for (float& score : scores) score = odd[bits.next() % odd.size()];
    const SamplingOptions options{.temperature = std::pow(10.0, 40 * bits.unit() - 20),
                                  .top_k = static_cast<int64_t>(bits.next() % 150),
                                  .top_p = 1.0 - bits.unit(),
                                  .min_p = bits.unit(),
                                  .repetition_penalty = 0.1 + 2 * bits.unit(),
                                  .seed = bits.next()};
    const std::vector<int64_t> history = {0, 3, -1, 1000};
    bool possible = false;
    for (const float score : scores) possible = possible || score > -kInf;
    if (!possible) continue;
    const int64_t token = Sampler(options).sample(scores, history);
    const bool inside = token >= 0 && token < static_cast<int64_t>(scores.size());
    check(inside && scores[static_cast<size_t>(token)] > -kInf, "a token that can be chosen");
  }
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  draws_the_published_sequence();
  copies_continue_alike();
  survives_any_scores_and_options();
  return exit_code();
}
