#include "cpp/metal/memory.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cpp/platform/memory.h"
#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr MTL::ResourceOptions kShared = MTL::ResourceStorageModeShared;
constexpr MTL::ResourceOptions kPrivate = MTL::ResourceStorageModePrivate;
constexpr uintptr_t kAlignment = 16;

[[noreturn]] void refuse(const Context& context, int64_t bytes) {
  const auto most = static_cast<int64_t>(context.device().maxBufferLength());
  std::string text = "the Metal device " + context.name() + " has no " + std::to_string(bytes) +
                     " bytes to give: ";
  if (bytes > most) {
    text += "a buffer has at most " + std::to_string(most);
  } else {
    text += std::to_string(context.device().currentAllocatedSize()) + " of " +
            std::to_string(context.total_memory()) + " are in use";
  }
  throw Error(ErrorCode::kDevice, text);
}

constexpr int64_t kOfNothing = 16;  // bytes for an empty tensor: a kernel's largest element

// Metal clears what it gives.
std::shared_ptr<Storage> allocate(const std::shared_ptr<const Context>& context, int64_t bytes,
                                  Reach reach) {
  const Pool pool;
  const bool is_private = reach == Reach::kDevice;
  // Metal's validation asks for an element of what a kernel reads, also where no thread reads it.
  auto length = static_cast<NS::UInteger>(bytes > 0 ? bytes : kOfNothing);
  if (is_private) length = (length + 3) / 4 * 4;  // what goes there, and comes from there, is words
  auto buffer =
      NS::TransferPtr(context->device().newBuffer(length, is_private ? kPrivate : kShared));
  if (!buffer) refuse(*context, bytes);
  return std::make_shared<Storage>(context, std::move(buffer));
}

std::atomic<uint64_t> storages{0};  // made so far

void raise(std::atomic<uint64_t>& value, uint64_t to) noexcept {
  uint64_t before = value.load();
  while (before < to && !value.compare_exchange_weak(before, to)) {
  }
}

}  // namespace

Storage::Storage(std::shared_ptr<const Context> context, Owned<MTL::Buffer> buffer)
    : context(std::move(context)),
      serial(++storages),
      buffer(std::move(buffer)),
      host(this->buffer->storageMode() == MTL::StorageModePrivate
               ? nullptr
               : static_cast<std::byte*>(this->buffer->contents())) {}

// The device's own memory is kept by the work that uses it; the host's is its owner's to free.
Storage::~Storage() {
  if (is_hosts) wait();
}

void Storage::use(uint64_t number, bool writes) noexcept {
  raise(last_use, number);
  if (writes) raise(last_write, number);
}

void Storage::wait() const {
  context->queue().wait(last_use.load());
}

MetalMemory::MetalMemory(const std::shared_ptr<const Context>& context, int64_t bytes, Reach reach)
    : storage_(allocate(context, bytes, reach)), bytes_(bytes) {}

void HostImports::forget_dropped() {
  std::erase_if(shown_, [](const auto& entry) { return entry.second.storage.expired(); });
}

std::shared_ptr<Memory> HostImports::show(const std::shared_ptr<const Context>& context,
                                          std::span<std::byte> bytes,
                                          std::shared_ptr<const void> owner) {
  const auto page = platform::page_bytes();
  const auto first = reinterpret_cast<uintptr_t>(bytes.data()), last = first + bytes.size();
  if (bytes.size() < page || first % kAlignment != 0) return nullptr;
  const Pool pool;
  std::vector<std::shared_ptr<Storage>> held;  // until the lock is gone: an owner may take others
  const std::lock_guard<ForkSafeMutex> locked(mutex_);
  forget_dropped();
  for (auto& [begin, shown] : shown_) {
    if (begin >= last || shown.last <= first) continue;
    const auto& storage = held.emplace_back(shown.storage.lock());
    if (storage == nullptr) continue;
    if (begin > first || shown.last < last) return nullptr;
    const uintptr_t offset = first - reinterpret_cast<uintptr_t>(storage->host);
    return std::make_shared<MetalMemory>(storage, offset, std::ssize(bytes), std::move(owner));
  }
  // Whole pages around the bytes.
  const uintptr_t start = first / page * page;
  const uintptr_t length = (last - start + page - 1) / page * page;
  auto buffer = NS::TransferPtr(
      context->device().newBuffer(reinterpret_cast<void*>(start), length, kShared, nullptr));
  if (!buffer) return nullptr;
  auto storage = std::make_shared<Storage>(context, std::move(buffer));
  storage->is_hosts = true;
  storage->owner = owner;
  shown_.emplace(first, Shown{first, last, storage});
  return std::make_shared<MetalMemory>(std::move(storage), first - start, std::ssize(bytes),
                                       std::move(owner));
}

}  // namespace npusim::metal
