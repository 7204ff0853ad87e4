// What a backend need not implement itself.
#include "cpp/runtime/device.h"

#include <chrono>
#include <string>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

// What was downloaded at once.
class Arrived final : public Download {
 public:
  Arrived(Device& device, const Memory& from) : bytes_(static_cast<size_t>(from.bytes())) {
    device.download(bytes_, from, 0);
  }
  std::span<std::byte> wait() override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

void check_range(const Memory& memory, int64_t offset, int64_t bytes) {
  const int64_t end = memory.bytes();
  if (offset >= 0 && bytes >= 0 && offset <= end && bytes <= end - offset) return;
  throw Error(ErrorCode::kInput, std::to_string(bytes) + " bytes from " + std::to_string(offset) +
                                     " on leave a memory of " + std::to_string(end) + " bytes");
}

std::unique_ptr<Download> Device::start_download(std::shared_ptr<const Memory> from) {
  return std::make_unique<Arrived>(*this, *from);
}

void CommandList::submit_timed(std::span<double> seconds) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point before = Clock::now();
  submit_observed([&](size_t index) {
    seconds[index] = std::chrono::duration<double>(Clock::now() - before).count();
    before = Clock::now();
  });
}

}  // namespace npusim
