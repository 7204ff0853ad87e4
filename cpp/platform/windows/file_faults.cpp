// Windows refuses to cut a file short while it is mapped, so no page is ever lost: what the POSIX
// side does with a signal has nothing to do here.
#include "cpp/platform/file_faults.h"

namespace npusim::platform {

WatchedRange::WatchedRange(std::span<const std::byte>, bool) : slot_(nullptr) {}

WatchedRange::~WatchedRange() = default;

bool WatchedRange::is_damaged() const noexcept {
  return slot_ != nullptr;
}

bool any_file_fault() noexcept {
  return false;
}

}  // namespace npusim::platform
