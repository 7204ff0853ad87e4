#include "cpp/c_api/handles.h"

#include <mutex>
#include <utility>
#include <vector>

#include "cpp/platform/forks.h"
#include "cpp/runtime/error.h"

namespace npusim::c_api {
namespace {

// A handle from its highest bit on: how often the slot was taken (36), the slot (24), the kind (4).
constexpr unsigned kKindBits = 4, kSlotBits = 24;
constexpr uintptr_t kKindMask = (uintptr_t{1} << kKindBits) - 1;
constexpr uintptr_t kSlotMask = (uintptr_t{1} << kSlotBits) - 1;
static_assert(sizeof(uintptr_t) == 8, "handles are 64 bits wide");

struct Slot {
  uintptr_t handle = 0;  // 0: free
  uintptr_t taken = 0;   // how often
  std::shared_ptr<void> object;
};

struct Table {
  ForkSafeMutex lock;
  std::vector<Slot> slots;
  std::vector<size_t> free;

  Slot* at(uintptr_t handle, Kind kind) {
    const size_t slot = handle >> kKindBits & kSlotMask;
    const bool known = handle != 0 && slot < slots.size() && slots[slot].handle == handle;
    return known && (handle & kKindMask) == static_cast<uintptr_t>(kind) ? &slots[slot] : nullptr;
  }
};

// Never destroyed: handles may be freed while the process ends.
Table& table() {
  static Table& only = *new Table;
  return only;
}

}  // namespace

uintptr_t add_object(Kind kind, std::shared_ptr<void> object) {
  Table& all = table();
  const std::lock_guard held(all.lock);
  if (all.free.empty()) {
    if (all.slots.size() > kSlotMask) throw Error(ErrorCode::kLimit, "there are too many handles");
    all.free.reserve(all.slots.size() + 1);  // so that dropping cannot fail
    all.slots.emplace_back();
    all.free.push_back(all.slots.size() - 1);
  }
  const size_t index = all.free.back();
  all.free.pop_back();
  Slot& slot = all.slots[index];
  slot.handle =
      ++slot.taken << (kKindBits + kSlotBits) | index << kKindBits | static_cast<uintptr_t>(kind);
  slot.object = std::move(object);
  return slot.handle;
}

std::shared_ptr<void> find_object(uintptr_t handle, Kind kind) noexcept {
  Table& all = table();
  const std::lock_guard held(all.lock);
  const Slot* slot = all.at(handle, kind);
  return slot == nullptr ? nullptr : slot->object;
}

// The object goes after the lock does: it may call back.
void drop_object(uintptr_t handle, Kind kind) noexcept {
  std::shared_ptr<void> dropped;
  Table& all = table();
  const std::lock_guard held(all.lock);
  Slot* slot = all.at(handle, kind);
  if (slot == nullptr) return;
  dropped.swap(slot->object);
  slot->handle = 0;
  all.free.push_back((handle >> kKindBits) & kSlotMask);
}

}  // namespace npusim::c_api
