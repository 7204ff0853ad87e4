// Memory of a Metal device: shared storage, which the host reads and writes where it lies, private
// storage, which it does not, and memory of the host that the device is shown.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "cpp/metal/context.h"
#include "cpp/platform/forks.h"
#include "cpp/runtime/device.h"

namespace npusim::metal {

// A Metal buffer, and the latest work that uses it and that writes it. Its address is
// MemoryRange::storage.
struct Storage {
  Storage(std::shared_ptr<const Context> context, Owned<MTL::Buffer> buffer);
  ~Storage();  // waits where the host's memory is used
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  bool is_private() const noexcept { return host == nullptr; }
  // Notes that work of a number uses it.
  void use(uint64_t number, bool writes) noexcept;
  // Waits until nothing uses it any more.
  void wait() const;

  const std::shared_ptr<const Context> context;
  const uint64_t serial;  // of no other storage, while a later one may lie at this address
  std::shared_ptr<const void> owner;  // of the host's memory; may be null. Outlives the buffer
  const Owned<MTL::Buffer> buffer;
  std::byte* const host;  // null: the storage is private
  bool is_hosts = false;
  std::atomic<uint64_t> last_use{0}, last_write{0};
};

inline Storage& storage_of(const MemoryRange& range) noexcept {
  return *reinterpret_cast<Storage*>(range.storage);
}
// Of memory that is not private.
inline std::byte* host_of(const MemoryRange& range) noexcept {
  return storage_of(range).host + range.offset;
}

enum class Reach : uint8_t { kBoth, kDevice };  // of memory; kDevice: in private storage

class MetalMemory final : public Memory {
 public:
  // Zeroed. Throws Error(kDevice) when the device has not that much.
  MetalMemory(const std::shared_ptr<const Context>& context, int64_t bytes,
              Reach reach = Reach::kBoth);
  // Bytes of a storage, from an offset on; `owner` keeps them.
  MetalMemory(std::shared_ptr<Storage> storage, uintptr_t offset, int64_t bytes,
              std::shared_ptr<const void> owner)
      : owner_(std::move(owner)), storage_(std::move(storage)), offset_(offset), bytes_(bytes) {}

  MemoryRange range() const noexcept override {
    return {reinterpret_cast<uintptr_t>(storage_.get()), offset_, bytes_};
  }
  std::byte* host() const noexcept override {
    return storage_->is_private() ? nullptr : storage_->host + offset_;
  }
  void check() const override { storage_->context->finish(storage_->last_write.load()); }

 private:
  std::shared_ptr<const void> owner_;  // outlives the storage
  std::shared_ptr<Storage> storage_;
  uintptr_t offset_ = 0;
  int64_t bytes_;
};

// The host's memory that a device is shown. What overlaps lies in one storage, so that whoever
// compares ranges finds that it does.
class HostImports {
 public:
  // Null where the device cannot use the bytes as they lie: they are fewer than a page, do not
  // begin at a multiple of 16, or overlap with others that were shown without the rest of them.
  std::shared_ptr<Memory> show(const std::shared_ptr<const Context>& context,
                               std::span<std::byte> bytes, std::shared_ptr<const void> owner);

 private:
  struct Shown {
    uintptr_t first, last;  // of the bytes; `last` is behind them
    std::weak_ptr<Storage> storage;
  };
  void forget_dropped();

  ForkSafeMutex mutex_;
  std::multimap<uintptr_t, Shown> shown_;  // by where they begin
};

}  // namespace npusim::metal
