// What a backend need not implement itself.
#include "cpp/runtime/device.h"

#include <chrono>
#include <string>

#include "cpp/runtime/borrowed_memory.h"
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

MemoryRange MemoryRange::part(int64_t from, int64_t length) const {
  if (from < 0 || length < 0 || from > bytes || length > bytes - from) {
    throw Error(ErrorCode::kInput, std::to_string(length) + " bytes from " + std::to_string(from) +
                                       " on leave a memory of " + std::to_string(bytes) + " bytes");
  }
  return {storage, offset + static_cast<uintptr_t>(from), length};
}

std::shared_ptr<Memory> Device::import_host(std::span<std::byte> bytes,
                                            std::shared_ptr<const void> owner) {
  if (addressing() != Addressing::kHost) return nullptr;
  return std::make_shared<BorrowedMemory>(host_range(bytes), bytes.data(), std::move(owner));
}

std::shared_ptr<Device> Device::ranks(int count) {
  throw Error(ErrorCode::kDevice, "the program is split among " + std::to_string(count) +
                                      " ranks, and ranks on the device " + std::string(name()) +
                                      " cannot exchange values. Compile it for one rank, or for "
                                      "cpu");
}

std::shared_ptr<Memory> Device::allocate_parts(std::span<const std::span<const std::byte>>, bool) {
  throw Error(ErrorCode::kDevice, "the device has one rank");
}

void Device::upload(Memory& to, int64_t offset, std::span<const std::byte> from) {
  const MemoryRange range = to.range().part(offset, static_cast<int64_t>(from.size()));
  if (!from.empty()) upload(range, from);
}

void Device::upload_all(std::span<const Upload> uploads) {
  for (const Upload& each : uploads) upload(each.to, each.from);
}

void Device::download(std::span<std::byte> to, const Memory& from, int64_t offset) {
  const MemoryRange range = from.range().part(offset, static_cast<int64_t>(to.size()));
  if (!to.empty()) download(to, range);
}

void Device::copy(Memory& to, int64_t to_offset, const Memory& from, int64_t from_offset,
                  int64_t bytes) {
  const MemoryRange target = to.range().part(to_offset, bytes);
  const MemoryRange source = from.range().part(from_offset, bytes);
  if (bytes > 0) copy(target, source);
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
