// Which entry of a step each request has. One keeps its entry from step to step as long as it can,
// so that what the device knows by entries, such as tables, stays true when others come and go.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace npusim::serve {

class StepEntries {
 public:
  StepEntries() = default;
  // For so many slots, and as many entries at most.
  explicit StepEntries(int64_t most);

  // Begins a step of entries [0, room), as many as slots at least; no slot stands there twice.
  // Writes an entry for each.
  void begin(std::span<const int64_t> slots, int64_t room, std::vector<int64_t>& entries);
  // One more entry of the step, which is nobody's afterwards; the room has to hold it.
  int64_t take();

 private:
  bool claim(int64_t entry);

  std::vector<int64_t> of_slot_;   // the latest entry of each; -1: none
  std::vector<int64_t> holder_;    // by entry: the slot that had it last; -1: nobody
  std::vector<uint64_t> claimed_;  // by entry: the step that has it
  uint64_t step_ = 0;
  int64_t room_ = 0, next_ = 0;  // entries below `next_` are taken in this step
};

}  // namespace npusim::serve
