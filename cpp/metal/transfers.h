// Bytes to and from private memory, which the host does not reach: the device copies them to or
// from memory that both do. Each is behind what the device's queue held before.
#pragma once

#include <cstddef>
#include <span>

#include "cpp/metal/memory.h"

namespace npusim::metal {

// Returns when `from` may change. Throws Error(kDevice).
void upload_private(const MemoryRange& to, std::span<const std::byte> from);
// Returns when the bytes have arrived. Throws Error(kDevice), also where the work that wrote them
// failed.
void download_private(std::span<std::byte> to, const MemoryRange& from);

}  // namespace npusim::metal
