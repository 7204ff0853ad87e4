#include "cpp/serve/request.h"

#include <iterator>

namespace npusim::serve {

void Event::add(Event later) {
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  tokens.append(later.tokens);
  append(logprobs, later.logprobs);
  if (later.prompt_logprobs) prompt_logprobs = std::move(later.prompt_logprobs);
  ending = later.ending;
  error = std::move(later.error);
  cached_tokens = later.cached_tokens;
}

TokenMask mask_of(std::span<const uint8_t> may) {
  TokenMask mask((may.size() + 31) / 32);
  for (size_t token = 0; token < may.size(); ++token) {
    if (may[token] != 0) mask[token / 32] |= 1U << (token % 32);
  }
  return mask;
}

}  // namespace npusim::serve
