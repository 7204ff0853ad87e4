// Eight bytes a step with eight tables ("slicing by 8": Kounavis and Berry, "A Systematic Approach
// to Building High Performance Software-based CRC Generators", 2005): a constant section of many
// megabytes must not make loading slow.
#include "cpp/runtime/crc32.h"

#include <array>

namespace npusim {
namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

constexpr Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0xEDB88320u : 0u);
    table[0][byte] = crc;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t slice = 1; slice < 8; ++slice) {
      const uint32_t crc = table[slice - 1][byte];
      table[slice][byte] = (crc >> 8) ^ table[0][crc & 0xFF];
    }
  }
  return table;
}

constexpr Table kTable = make_table();

uint32_t load32(const std::byte* from) noexcept {
  return std::to_integer<uint32_t>(from[0]) | std::to_integer<uint32_t>(from[1]) << 8 |
         std::to_integer<uint32_t>(from[2]) << 16 | std::to_integer<uint32_t>(from[3]) << 24;
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) noexcept {
  crc = ~crc;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    const uint32_t low = crc ^ load32(&bytes[at]);
    const uint32_t high = load32(&bytes[at + 4]);
    crc = kTable[7][low & 0xFF] ^ kTable[6][low >> 8 & 0xFF] ^ kTable[5][low >> 16 & 0xFF] ^
          kTable[4][low >> 24] ^ kTable[3][high & 0xFF] ^ kTable[2][high >> 8 & 0xFF] ^
          kTable[1][high >> 16 & 0xFF] ^ kTable[0][high >> 24];
  }
  for (; at < bytes.size(); ++at) {
    crc = (crc >> 8) ^ kTable[0][(crc ^ std::to_integer<uint32_t>(bytes[at])) & 0xFF];
  }
  return ~crc;
}

}  // namespace npusim
