// How many tokens of prompts a step may take, so that whoever generates beside them does not wait
// longer than wished: as many as ran in that time at the best rate that was seen lately.
#pragma once

#include <cstdint>

namespace npusim::serve {

class PromptPace {
 public:
  // `seconds`: of a step; 0: any. Steps may always have `least` tokens of prompts.
  PromptPace(double seconds, int64_t least, int64_t most) noexcept
      : seconds_(seconds), least_(least), most_(most) {}

  // What the next step may take.
  int64_t allowance() const noexcept;
  // Tells how long a step took that had so many tokens of prompts.
  void note(int64_t prompt_tokens, double seconds) noexcept;

 private:
  double seconds_;
  int64_t least_, most_;
  double best_ = 0;  // tokens a second; 0: unknown
};

}  // namespace npusim::serve
