#include "cpp/serve/pace.h"

#include <algorithm>

namespace npusim::serve {
namespace {

constexpr double kForgetting = 0.98;  // of the best rate, a step: a machine may have become slower
constexpr double kRecent = 0.125;     // how much the last step counts among those without prompts
constexpr double kAnew = 0.5;         // and how much, if there was none for long
constexpr int kLong = 48;             // steps
constexpr double kShare = 0.75;       // of such a step's time, that prompts may add
constexpr double kLeastShare = 0.1;   // of a step's time, that its prompts are taken to have added
constexpr double kGrowth = 2;  // of the rate, a step, at most: one may have been short by luck

}  // namespace

int64_t PromptPace::allowance(bool beside) const noexcept {
  if (!(seconds_ > 0)) return most_;
  if (beside && since_plain_ >= kLong) return 1;
  double tokens = best_ * seconds_;
  if (beside && plain_ > 0) {
    tokens = std::min(tokens, (beside_ > 0 ? beside_ : best_) * kShare * plain_);
  }
  if (!(tokens > static_cast<double>(least_))) return least_;
  return tokens < static_cast<double>(most_) ? static_cast<int64_t>(tokens) : most_;
}

// Tokens far behind in a prompt take longer than its first ones, so what they add is asked anew in
// every step.
void PromptPace::note(int64_t prompt_tokens, bool beside, double seconds) noexcept {
  if (!(seconds > 0)) return;
  if (prompt_tokens == 0) {
    const double counts = since_plain_ >= kLong ? kAnew : kRecent;
    plain_ = plain_ > 0 ? plain_ + counts * (seconds - plain_) : seconds;
    since_plain_ = 0;
    return;
  }
  since_plain_ = beside ? std::min(since_plain_ + 1, kLong) : since_plain_;
  const auto tokens = static_cast<double>(prompt_tokens);
  if (beside && plain_ > 0) {
    const double rate = tokens / std::max(seconds - plain_, kLeastShare * seconds);
    beside_ = beside_ > 0 ? std::min(rate, kGrowth * beside_) : rate;
  }
  if (prompt_tokens >= least_) best_ = std::max(best_ * kForgetting, tokens / seconds);
}

}  // namespace npusim::serve
