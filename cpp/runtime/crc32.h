// The checksum of .npubin sections: zlib's crc32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace npusim {

// Continues `crc` (the checksum of what came before; 0 at the start) over more bytes.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc = 0) noexcept;

}  // namespace npusim
