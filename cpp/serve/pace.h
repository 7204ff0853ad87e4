// How many tokens of prompts a step may take, so that whoever generates beside them does not wait
// longer than wished: as many as ran in that time lately.
#pragma once

#include <cstdint>

namespace npusim::serve {

class PromptPace {
 public:
  // `seconds`: of a step; 0: any. Beside requests that generate, prompts moreover add to a step
  // less than it takes without them, so that nobody's token takes twice as long as usual. Steps may
  // have `least` tokens of prompts, however long these take. Where prompts never pause, one step of
  // many has a single token of them, as those have that generate: how long steps take without
  // prompts follows how many requests there are.
  PromptPace(double seconds, int64_t least, int64_t most) noexcept
      : seconds_(seconds), least_(least), most_(most) {}

  // What the next step may take, beside requests that generate or alone.
  int64_t allowance(bool beside) const noexcept;
  // How long so many tokens of prompts take alone, at the best rate seen; 0: unknown.
  double expected(int64_t prompt_tokens) const noexcept {
    return best_ > 0 ? static_cast<double>(prompt_tokens) / best_ : 0;
  }
  // Tells how long a step took that had so many tokens of prompts, beside others or alone.
  void note(int64_t prompt_tokens, bool beside, double seconds) noexcept;

 private:
  double seconds_;
  int64_t least_, most_;
  // Tokens a second: the best of whole steps, and what lately came on top of a step. Seconds of a
  // step without prompts. 0: unknown.
  double best_ = 0, beside_ = 0, plain_ = 0;
  int since_plain_ = 0;  // steps that had prompts, since one had none
};

}  // namespace npusim::serve
