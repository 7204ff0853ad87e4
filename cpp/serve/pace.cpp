#include "cpp/serve/pace.h"

#include <algorithm>

namespace npusim::serve {
namespace {

constexpr double kForgetting = 0.98;  // of the best rate, a step: a machine may have become slower

}  // namespace

int64_t PromptPace::allowance() const noexcept {
  if (!(seconds_ > 0)) return most_;
  const double tokens = best_ * seconds_;
  if (!(tokens > static_cast<double>(least_))) return least_;
  return tokens < static_cast<double>(most_) ? static_cast<int64_t>(tokens) : most_;
}

void PromptPace::note(int64_t prompt_tokens, double seconds) noexcept {
  if (prompt_tokens < least_ || !(seconds > 0)) return;
  best_ = std::max(best_ * kForgetting, static_cast<double>(prompt_tokens) / seconds);
}

}  // namespace npusim::serve
