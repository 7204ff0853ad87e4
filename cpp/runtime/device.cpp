// What a backend need not implement itself.
#include "cpp/runtime/device.h"

#include <chrono>

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
