#include "cpp/runtime/container.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpp/runtime/crc32.h"
#include "cpp/runtime/error.h"

namespace npusim {

static_assert(std::endian::native == std::endian::little, "records are read as they are stored");

namespace {

constexpr std::string_view kMagic = "\x89NPUB\r\n\x1a";
constexpr uint16_t kMajor = 1, kMinor = 4;
constexpr uint64_t kKnownFeatures = 0;
constexpr size_t kAlignment = 64, kPage = 4096, kMaxSections = 64;
constexpr uint32_t kOptional = 1, kPageAligned = 2;
constexpr size_t kEntrySize = 32;

struct Header {
  char magic[8];
  uint16_t major, minor;
  uint32_t sections;
  uint64_t features, file_size;
  std::array<uint16_t, 3> reader;  // of a newer format: the first npusim that reads it
  std::byte reserved[22];
  uint32_t checksum;
};
static_assert(sizeof(Header) == 64);

constexpr std::string_view kNames[kSections] = {"",
                                                "PROGRAM",
                                                "STRINGS",
                                                "KERNELS",
                                                "IMAGES",
                                                "BUFFERS",
                                                "METHODS",
                                                "COMMANDS",
                                                "OPERANDS",
                                                "PARAMS",
                                                "SPECS",
                                                "WEIGHTS",
                                                "KEYS",
                                                "DIMS",
                                                "NODES",
                                                "CONSTANTS",
                                                "METADATA",
                                                "SYMBOLS",
                                                "EXPRESSIONS",
                                                "SHAPES",
                                                "SYMBOLIC_DIMS",
                                                "PATCHES",
                                                "SPECIALIZED",
                                                "SIMULATION",
                                                "WEIGHT_PARTS"};

template <typename T>
T load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, &bytes[at], sizeof value);
  return value;
}

size_t align(size_t offset, size_t alignment) {
  return (offset + alignment - 1) & ~(alignment - 1);
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

bool is_known(uint32_t id) {
  return id >= 1 && id < kSections;
}

uint32_t flags_of(Section section) {
  if (section == Section::kImages || section == Section::kConstants) return kPageAligned;
  return section == Section::kMetadata || section == Section::kSimulation ? kOptional : 0;
}

[[noreturn]] void damaged(const std::string& why) {
  throw Error(ErrorCode::kFormat, "The .npubin file is damaged: " + why +
                                      ". Copy it again, or compile the model again.");
}

[[noreturn]] void other_version(const Header& header, const std::string& needs) {
  const auto version = [](int a, int b) { return std::to_string(a) + "." + std::to_string(b); };
  const auto [first, second, third] = header.reader;
  const std::string newer =
      first + second + third == 0
          ? "Upgrade npusim"
          : "Install npusim " + version(first, second) + "." + std::to_string(third) + " or later";
  throw Error(ErrorCode::kVersion,
              "The .npubin file has format " + version(header.major, header.minor) + needs +
                  "; this npusim reads " + version(kMajor, 0) + " to " + version(kMajor, kMinor) +
                  ". " +
                  (header.major < kMajor ? "Compile the model again."
                                         : newer + ", or compile it again here."));
}

// Verifies everything up to the end of the section table; returns the number of sections.
size_t check_header(std::span<const std::byte> file) {
  if (file.size() < kMagic.size() || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0) {
    throw Error(ErrorCode::kFormat, std::string("This is not a .npubin file") +
                                        (file.empty() ? "; it is empty" : "") +
                                        ". `npusim compile` makes one from a model.");
  }
  const std::string ends = "it ends after " + std::to_string(file.size()) + " bytes, inside its ";
  if (file.size() < sizeof(Header)) damaged(ends + "header");
  const auto header = load<Header>(file, 0);
  if (header.major != kMajor) other_version(header, "");
  if (header.sections < 1 || header.sections > kMaxSections) {
    damaged("header: " + std::to_string(header.sections) + " sections; 1 … 64 are possible");
  }
  const size_t end = sizeof(Header) + kEntrySize * header.sections;
  if (end > file.size()) damaged(ends + "section table");
  const uint32_t start = crc32(file.first(60));
  if (crc32(file.subspan(sizeof(Header), end - sizeof(Header)), start) != header.checksum) {
    damaged("the checksum of its header and section table is wrong");
  }
  if ((header.features & ~kKnownFeatures) != 0) {
    other_version(header, " and needs features this reader does not have");
  }
  const bool says_reader = header.reader != std::array<uint16_t, 3>{};
  if (!all_zero(header.reserved) || (says_reader && header.minor <= kMinor))
    damaged("reserved bytes of its header are not zero");
  if (header.file_size != file.size()) {
    damaged(std::string("it was ") +
            (header.file_size > file.size() ? "cut short" : "appended to") + ": its header says " +
            std::to_string(header.file_size) + " bytes, it has " + std::to_string(file.size()));
  }
  return header.sections;
}

}  // namespace

void Chunk::refuse(size_t at, const std::string& why) const {
  damaged("section " + std::string(kNames[static_cast<uint32_t>(section)]) + ", byte " +
          std::to_string(offset + at) + " of the file: " + why);
}

struct Container::Entry {
  uint32_t id, flags;
  uint64_t offset, size;
  uint32_t checksum, reserved;
};

uint64_t Container::fingerprint() const {
  const auto header = load<Header>(file_, 0);
  return header.file_size << 32 | header.checksum;
}

Container::Container(std::span<const std::byte> file) : file_(file) {
  for (uint32_t id = 0; id < kSections; ++id) chunks_[id].section = static_cast<Section>(id);
  const size_t count = check_header(file);
  size_t end = sizeof(Header) + kEntrySize * count;
  for (size_t index = 0; index < count; ++index) end = read_section(index, end);
  if (end != file.size()) damaged("bytes follow the last section");
  for (const Section needed : {Section::kProgram, Section::kStrings, Section::kMethods}) {
    const auto id = static_cast<uint32_t>(needed);
    if (std::find(seen_.begin(), seen_.end(), id) == seen_.end()) {
      damaged("section " + std::string(kNames[id]) + " is missing");
    }
  }
}

// Verifies one section that follows byte `end`; returns where it ends itself.
size_t Container::read_section(size_t index, size_t end) {
  static_assert(sizeof(Entry) == kEntrySize);
  const auto entry = load<Entry>(file_, sizeof(Header) + kEntrySize * index);
  check_entry(entry, index, end);
  seen_.push_back(entry.id);
  const auto bytes = file_.subspan(entry.offset, entry.size);
  if (is_known(entry.id)) {
    chunks_[entry.id].bytes = bytes;
    chunks_[entry.id].offset = entry.offset;
  }
  return entry.offset + entry.size;
}

void Container::check_entry(const Entry& entry, size_t index, size_t end) const {
  const std::string where =
      "section table entry " + std::to_string(index) + " (id " + std::to_string(entry.id) + ")";
  if (entry.reserved != 0) damaged(where + ": its reserved field is not zero");
  if (std::find(seen_.begin(), seen_.end(), entry.id) != seen_.end()) {
    damaged(where + ": the section appears twice");
  }
  if ((entry.flags & ~(kOptional | kPageAligned)) != 0) damaged(where + ": unknown flags");
  if (!is_known(entry.id) && (entry.flags & kOptional) == 0) {
    other_version(load<Header>(file_, 0), " and needs section " + std::to_string(entry.id));
  }
  if (is_known(entry.id) && entry.flags != flags_of(static_cast<Section>(entry.id))) {
    damaged(where + ": its flags are not those of this section");
  }
  const size_t wanted = align(end, (entry.flags & kPageAligned) != 0 ? kPage : kAlignment);
  if (entry.offset != wanted || wanted > file_.size() || entry.size > file_.size() - wanted) {
    damaged(where + ": it is out of place; it must start at " + std::to_string(wanted) +
            " and end within " + std::to_string(file_.size()));
  }
  if (!all_zero(file_.subspan(end, wanted - end)))
    damaged(where + ": padding before it is not zero");
  if (crc32(file_.subspan(wanted, entry.size)) != entry.checksum) {
    damaged(where + ": its checksum is wrong");
  }
}

std::vector<std::span<const std::byte>> unpack_blobs(const Chunk& chunk, size_t alignment) {
  const auto data = chunk.bytes;
  if (data.empty()) return {};
  if (data.size() < 8) chunk.refuse(0, "the table is cut short");
  const auto count = load<uint32_t>(data, 0), reserved = load<uint32_t>(data, 4);
  const size_t head = 8 + 8 * static_cast<size_t>(count);
  const size_t base = align(head, kAlignment);
  if (reserved != 0 || base > data.size() || !all_zero(data.subspan(head, base - head))) {
    chunk.refuse(0, "the table is cut short or padded with non-zeros");
  }
  std::vector<std::span<const std::byte>> blobs;
  blobs.reserve(count);
  size_t end = base;
  for (size_t index = 0; index < count; ++index) {
    const size_t start = align(end, alignment);
    const auto length = load<uint64_t>(data, 8 + 8 * index);  // from base to the blob's end
    if (length > data.size() - base || start > base + length ||
        !all_zero(data.subspan(end, start - end))) {
      chunk.refuse(8 + 8 * index, "blob " + std::to_string(index) + " is out of place");
    }
    end = base + length;
    blobs.push_back(data.subspan(start, end - start));
  }
  if (end != data.size()) chunk.refuse(end, "bytes follow the last blob");
  return blobs;
}

}  // namespace npusim
