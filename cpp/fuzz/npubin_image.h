// A .npubin file taken apart into its sections and put together again with right places and
// checksums: lets tests and the fuzzer change content without breaking the container around it.
// Understands only well-formed containers; validates nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "cpp/runtime/crc32.h"

namespace npusim::tests {

struct SectionImage {
  uint32_t id, flags;
  std::vector<std::byte> bytes;
};

class NpubinImage {
 public:
  static constexpr size_t kHeader = 64, kEntry = 32, kMaxSections = 64;

  // Nothing when the bytes have no section table that stays inside them.
  static std::optional<NpubinImage> parse(std::span<const std::byte> file) {
    if (file.size() < kHeader) return std::nullopt;
    const size_t count = load<uint32_t>(file, 12);
    if (count > kMaxSections || kHeader + kEntry * count > file.size()) return std::nullopt;
    NpubinImage image;
    std::memcpy(image.header_, file.data(), kHeader);
    for (size_t at = kHeader; at < kHeader + kEntry * count; at += kEntry) {
      const auto offset = load<uint64_t>(file, at + 8), size = load<uint64_t>(file, at + 16);
      if (offset > file.size() || size > file.size() - offset) return std::nullopt;
      const auto bytes = file.subspan(offset, size);
      image.sections.push_back({load<uint32_t>(file, at), load<uint32_t>(file, at + 4),
                                std::vector(bytes.begin(), bytes.end())});
    }
    return image;
  }

  // The file, every section in its place.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> file(kHeader + kEntry * sections.size());
    std::memcpy(file.data(), header_, kHeader);
    for (size_t i = 0; i < sections.size(); ++i) {
      const SectionImage& section = sections[i];
      const size_t alignment = (section.flags & 2) != 0 ? 4096 : 64;
      const uint64_t offset = (file.size() + alignment - 1) / alignment * alignment;
      file.resize(offset);
      file.insert(file.end(), section.bytes.begin(), section.bytes.end());
      const size_t at = kHeader + kEntry * i;
      store<uint32_t>(file, at, section.id);
      store<uint32_t>(file, at + 4, section.flags);
      store<uint64_t>(file, at + 8, offset);
      store<uint64_t>(file, at + 16, section.bytes.size());
    }
    store<uint32_t>(file, 12, static_cast<uint32_t>(sections.size()));
    store<uint64_t>(file, 24, file.size());
    seal(file);
    return file;
  }

  // Puts right checksums into a file whose section table stays inside it; leaves others alone.
  static void seal(std::span<std::byte> file) {
    if (file.size() < kHeader) return;
    const size_t count = load<uint32_t>(file, 12);
    if (count > kMaxSections || kHeader + kEntry * count > file.size()) return;
    const auto table = file.subspan(kHeader, kEntry * count);
    for (size_t at = 0; at < table.size(); at += kEntry) {
      const auto offset = load<uint64_t>(table, at + 8), size = load<uint64_t>(table, at + 16);
      if (offset > file.size() || size > file.size() - offset) continue;
      store<uint32_t>(table, at + 24, crc32(file.subspan(offset, size)));
    }
    store<uint32_t>(file, 60, crc32(table, crc32(file.first(60))));
  }

  SectionImage* find(uint32_t id) {
    const auto found = std::find_if(sections.begin(), sections.end(),
                                    [&](const SectionImage& s) { return s.id == id; });
    return found == sections.end() ? nullptr : &*found;
  }

  template <typename T>
  static T load(std::span<const std::byte> bytes, size_t at) {
    T value;
    std::memcpy(&value, &bytes[at], sizeof value);
    return value;
  }
  template <typename T>
  static void store(std::span<std::byte> bytes, size_t at, T value) {
    std::memcpy(&bytes[at], &value, sizeof value);
  }

  std::vector<SectionImage> sections;

 private:
  std::byte header_[kHeader] = {};
};

}  // namespace npusim::tests
