// Which runs a prompt takes: how many tokens each, and of which method.
#pragma once

#include <cstdint>

#include "cpp/runtime/metadata.h"

namespace npusim {

// How many of `waiting` tokens the next run takes when `position` tokens are fed: the largest
// chunk of which no more than half would be padding, the smallest chunk after it, or one token
// where a chunk does not fit any more or would be mostly padding. Where there are recurrent
// states, which no padding may reach: the largest chunk that is filled, or one token.
int64_t next_run(const LanguageModelFacts& facts, int64_t position, int64_t waiting) noexcept;

// The chunk whose method takes so many tokens: the smallest that holds them, or the largest; 1 is
// `decode`.
int64_t chunk_of(const LanguageModelFacts& facts, int64_t tokens) noexcept;

}  // namespace npusim
