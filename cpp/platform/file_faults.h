// Memory that shows a file and may vanish: who truncates a mapped file takes its last pages away,
// and reading them raises SIGBUS, which ends the process. Here the signal becomes a fact that can
// be asked for: the lost pages read as zeros from then on, and the range says that it is damaged.
//
// What reads such memory asks afterwards, and throws away what it made of it. The handler is
// installed with the first range. It changes nothing but watched ranges, and passes every other
// SIGBUS on to the handler that was there before; one that is installed later, and does not pass on
// what it does not know, takes the signal away from it (loading another file installs it again).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace npusim::platform {

// Watches the pages that hold some bytes, for as long as it lives; the memory must be mapped as
// long. Any number may be watched, by any thread.
class WatchedRange {
 public:
  // `writable`: the owner may write there (to pages of its own).
  WatchedRange(std::span<const std::byte> bytes, bool writable);
  ~WatchedRange();
  WatchedRange(const WatchedRange&) = delete;
  WatchedRange& operator=(const WatchedRange&) = delete;

  // Whether pages were lost.
  bool is_damaged() const noexcept;

 private:
  struct Slot* slot_;  // null for no bytes
};

// Whether any range of the process was ever damaged. Costs a load.
bool any_file_fault() noexcept;

}  // namespace npusim::platform
