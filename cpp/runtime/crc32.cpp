// Sixteen bytes a step with sixteen tables ("slicing": Kounavis and Berry, "A Systematic Approach
// to Building High Performance Software-based CRC Generators", 2005): a constant section of many
// megabytes must not make loading slow.
#include "cpp/runtime/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace npusim {
namespace {

constexpr size_t kSlices = 16;
using Table = std::array<std::array<uint32_t, 256>, kSlices>;

constexpr Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0xEDB88320u : 0u);
    table[0][byte] = crc;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t slice = 1; slice < kSlices; ++slice) {
      const uint32_t crc = table[slice - 1][byte];
      table[slice][byte] = (crc >> 8) ^ table[0][crc & 0xFF];
    }
  }
  return table;
}

constexpr Table kTable = make_table();

static_assert(std::endian::native == std::endian::little);

// What four bytes, `slice` bytes before the end of a step, add to the checksum; `crc` is that of
// the bytes before when they are the first of their step.
uint32_t term(const std::byte* from, size_t slice, uint32_t crc = 0) noexcept {
  uint32_t w;
  std::memcpy(&w, from, sizeof w);
  w ^= crc;
  return kTable[slice + 3][w & 0xFF] ^ kTable[slice + 2][w >> 8 & 0xFF] ^
         kTable[slice + 1][w >> 16 & 0xFF] ^ kTable[slice][w >> 24];
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) noexcept {
  crc = ~crc;
  size_t at = 0;
  for (; at + kSlices <= bytes.size(); at += kSlices) {
    const std::byte* p = &bytes[at];
    // What does not wait for the previous step comes first.
    const uint32_t rest = term(p + 4, 8) ^ term(p + 8, 4) ^ term(p + 12, 0);
    crc = rest ^ term(p, 12, crc);
  }
  for (; at < bytes.size(); ++at) {
    crc = (crc >> 8) ^ kTable[0][(crc ^ std::to_integer<uint32_t>(bytes[at])) & 0xFF];
  }
  return ~crc;
}

}  // namespace npusim
