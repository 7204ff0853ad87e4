#include "cpp/runtime/ranked_device.h"

namespace npusim {

std::string RankedDevice::kind() const {
  return devices_.front()->kind() + ", " + std::to_string(devices_.size()) + " ranks";
}

std::string RankedDevice::description() const {
  return std::to_string(devices_.size()) + " ranks of " + devices_.front()->description();
}

std::shared_ptr<Memory> RankedDevice::allocate(int64_t bytes) {
  return on_each([&](Device& device) { return device.allocate(bytes); });
}

std::shared_ptr<Memory> RankedDevice::allocate_growing(int64_t bytes) {
  return on_each([&](Device& device) { return device.allocate_growing(bytes); });
}

std::shared_ptr<Memory> RankedDevice::allocate_unset(int64_t bytes) {
  return on_each([&](Device& device) { return device.allocate_unset(bytes); });
}

void RankedDevice::upload(const MemoryRange& to, std::span<const std::byte> from) {
  const size_t count = to.storage == 0 ? 1 : devices_.size();
  for (size_t i = 0; i < count; ++i) devices_[i]->upload(RankMemory::on(to, i), from);
}

void RankedDevice::upload_all(std::span<const Upload> uploads) {
  std::vector<Upload> own(uploads.begin(), uploads.end());
  for (size_t rank = 0; rank < devices_.size(); ++rank) {
    for (size_t i = 0; i < own.size(); ++i) own[i].to = RankMemory::on(uploads[i].to, rank);
    devices_[rank]->upload_all(own);
  }
}

void RankedDevice::download(std::span<std::byte> to, const MemoryRange& from) {
  devices_.front()->download(to, RankMemory::on(from, 0));
}

void RankedDevice::copy(const MemoryRange& to, const MemoryRange& from) {
  const size_t count = to.storage == 0 ? 1 : devices_.size();
  for (size_t i = 0; i < count; ++i) {
    devices_[i]->copy(RankMemory::on(to, i), RankMemory::on(from, i));
  }
}

}  // namespace npusim
