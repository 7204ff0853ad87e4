#include "cpp/runtime/prompt_runs.h"

#include <algorithm>

namespace npusim {
namespace {

// A run of prefill costs as much as a full chunk; for fewer than chunk / kDecodesPerChunk tokens,
// decoding one by one is cheaper.
constexpr int64_t kDecodesPerChunk = 16;

// The largest chunk of at most so many tokens; one token at the least, where there is any.
int64_t filled_chunk(const LanguageModelFacts& facts, int64_t most) noexcept {
  int64_t filled = facts.prefill_chunk <= most ? facts.prefill_chunk : 1;
  for (const int64_t larger : facts.larger_chunks) {
    if (larger <= most) filled = larger;
  }
  return std::min(filled, most);
}

}  // namespace

int64_t next_run(const LanguageModelFacts& facts, int64_t position, int64_t waiting) noexcept {
  const int64_t room = facts.max_context - position;
  if (!facts.recurrent.empty()) return filled_chunk(facts, std::min(room, waiting));
  const bool few = waiting <= std::max<int64_t>(1, facts.prefill_chunk / kDecodesPerChunk);
  if (few || facts.prefill_chunk > room) return std::min<int64_t>(waiting, 1);
  int64_t chunk = facts.prefill_chunk;
  for (const int64_t larger : facts.larger_chunks) {
    if (larger <= room && larger - waiting <= larger / 2) chunk = larger;
  }
  return std::min(waiting, chunk);
}

int64_t chunk_of(const LanguageModelFacts& facts, int64_t tokens) noexcept {
  if (tokens == 1) return 1;
  if (tokens <= facts.prefill_chunk || facts.larger_chunks.empty()) return facts.prefill_chunk;
  for (const int64_t larger : facts.larger_chunks) {
    if (tokens <= larger) return larger;
  }
  return facts.larger_chunks.back();
}

}  // namespace npusim
