// The container of a .npubin file: header, section table, checksums, blob tables (docs/npubin.md,
// "Container"). Knows where bytes lie and that they are whole; not what a section means.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace npusim {

enum class Section : uint32_t {
  kProgram = 1,
  kStrings = 2,
  kKernels = 3,
  kImages = 4,
  kBuffers = 5,
  kMethods = 6,
  kCommands = 7,
  kOperands = 8,
  kParams = 9,
  kSpecs = 10,
  kWeights = 11,
  kKeys = 12,
  kDims = 13,
  kNodes = 14,
  kConstants = 15,
  kMetadata = 16,
  kSymbols = 17,
  kExpressions = 18,
  kShapes = 19,
  kSymbolicDims = 20,
  kPatches = 21,
  kSpecialized = 22,
  kSimulation = 23,
  kWeightParts = 24,
};
inline constexpr uint32_t kSections = 25;  // one more than the last id

// The bytes of a section and where they lie in the file; empty when the file lacks the section.
struct Chunk {
  Section section{};
  std::span<const std::byte> bytes;
  size_t offset = 0;

  // Throws Error(kFormat) for a fault at byte `at` of this section.
  [[noreturn]] void refuse(size_t at, const std::string& why) const;
};

// A file whose every byte is accounted for. Does not own the bytes.
class Container {
 public:
  // Throws Error(kVersion) for another version, unknown features or sections that are needed;
  // Error(kFormat) for everything else the specification forbids.
  explicit Container(std::span<const std::byte> file);
  const Chunk& operator[](Section section) const { return chunks_[static_cast<uint32_t>(section)]; }
  // Of the file's size and, through the checksums in its section table, of its every byte.
  uint64_t fingerprint() const;

 private:
  struct Entry;
  size_t read_section(size_t index, size_t end);
  void check_entry(const Entry& entry, size_t index, size_t end) const;

  std::span<const std::byte> file_;
  std::array<Chunk, kSections> chunks_;
  std::vector<uint32_t> seen_;
};

// Returns the blobs of a blob table whose blobs start at multiples of `alignment`.
std::vector<std::span<const std::byte>> unpack_blobs(const Chunk& chunk, size_t alignment);

}  // namespace npusim
