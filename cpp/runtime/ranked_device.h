// Memory and transfers of several ranks as one Device: a range is a handle with as many bytes on
// each rank's device. What is written is written on all, and what is read is rank 0's. Those who
// derive from it run programs (encode).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpp/runtime/device.h"

namespace npusim {

using RankDevices = std::vector<std::shared_ptr<Device>>;  // by rank

// As many bytes on every rank.
class RankMemory final : public Memory {
 public:
  // `watched`: the host only looks at it (Device::allocate_watched), where rank 0 has it.
  explicit RankMemory(std::vector<std::shared_ptr<Memory>> parts, bool watched = false)
      : parts_(std::move(parts)), watched_(watched) {}
  MemoryRange range() const noexcept override {
    return {reinterpret_cast<uintptr_t>(this), 0, parts_.front()->bytes()};
  }
  std::byte* host() const noexcept override { return watched_ ? parts_.front()->host() : nullptr; }
  void check() const override {
    for (const auto& part : parts_) part->check();
  }
  const std::shared_ptr<Memory>& first() const noexcept { return parts_.front(); }

  // A range of this memory, on a rank.
  static MemoryRange on(const MemoryRange& range, size_t rank) {
    if (range.storage == 0) return range;  // the host's, which all ranks share
    const auto& memory = *reinterpret_cast<const RankMemory*>(range.storage);
    return memory.parts_[rank]->range().part(static_cast<int64_t>(range.offset), range.bytes);
  }

 private:
  std::vector<std::shared_ptr<Memory>> parts_;
  bool watched_;
};

class RankedDevice : public Device {
 public:
  explicit RankedDevice(RankDevices devices) : devices_(std::move(devices)) {}

  std::string_view name() const noexcept override { return devices_.front()->name(); }
  std::string kind() const override;
  std::string description() const override;
  int rank_count() const noexcept override { return static_cast<int>(devices_.size()); }
  Addressing addressing() const noexcept override { return Addressing::kHandles; }
  bool host_visible() const noexcept override { return false; }
  bool synchronous() const noexcept override { return devices_.front()->synchronous(); }
  size_t alignment() const noexcept override { return devices_.front()->alignment(); }

  std::shared_ptr<Memory> allocate(int64_t bytes) override;
  std::shared_ptr<Memory> allocate_growing(int64_t bytes) override;
  std::shared_ptr<Memory> allocate_unset(int64_t bytes) override;

  void upload(const MemoryRange& to, std::span<const std::byte> from) override;
  void upload_all(std::span<const Upload> uploads) override;
  void download(std::span<std::byte> to, const MemoryRange& from) override;
  void copy(const MemoryRange& to, const MemoryRange& from) override;

 protected:
  template <typename Make>
  std::shared_ptr<Memory> on_each(const Make& make, bool watched = false) {
    std::vector<std::shared_ptr<Memory>> parts;
    for (const auto& device : devices_) parts.push_back(make(*device));
    return std::make_shared<RankMemory>(std::move(parts), watched);
  }

  RankDevices devices_;
};

}  // namespace npusim
