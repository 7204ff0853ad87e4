#include "cpp/serve/step_entries.h"

#include "cpp/serve/require.h"

namespace npusim::serve {

StepEntries::StepEntries(int64_t most)
    : of_slot_(static_cast<size_t>(most), -1),
      holder_(static_cast<size_t>(most), -1),
      claimed_(static_cast<size_t>(most), 0) {}

bool StepEntries::claim(int64_t entry) {
  uint64_t& step = claimed_[static_cast<size_t>(entry)];
  if (step == step_) return false;
  step = step_;
  return true;
}

// First those that keep theirs, then the others in what these leave, the lowest first.
void StepEntries::begin(std::span<const int64_t> slots, int64_t room,
                        std::vector<int64_t>& entries) {
  require(room <= static_cast<int64_t>(holder_.size()), "no more entries than a step takes");
  ++step_;
  room_ = room;
  next_ = 0;
  entries.clear();
  for (const int64_t slot : slots) {
    const int64_t entry = of_slot_[static_cast<size_t>(slot)];
    const bool keeps = entry >= 0 && entry < room && holder_[static_cast<size_t>(entry)] == slot;
    entries.push_back(keeps && claim(entry) ? entry : -1);
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    if (entries[i] >= 0) continue;
    entries[i] = take();
    of_slot_[static_cast<size_t>(slots[i])] = entries[i];
    holder_[static_cast<size_t>(entries[i])] = slots[i];
  }
}

int64_t StepEntries::take() {
  while (next_ < room_ && !claim(next_)) ++next_;
  require(next_ < room_, "entries for all rows whose scores are wanted");
  holder_[static_cast<size_t>(next_)] = -1;
  return next_++;
}

}  // namespace npusim::serve
