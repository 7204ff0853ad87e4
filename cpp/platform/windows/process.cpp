#include "cpp/platform/process.h"

#include "cpp/platform/windows/windows_headers.h"

namespace npusim::platform {

bool may_be_main_thread() noexcept {
  return true;
}

int64_t coarse_milliseconds() noexcept {
  return static_cast<int64_t>(GetTickCount64());
}

}  // namespace npusim::platform
