// A safetensors file is: u64 length of the header; the header, a JSON object of
// name: {dtype, shape, data_offsets} and "__metadata__"; the data, which the tensors cover without
// holes or overlaps.
#include "cpp/runtime/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>

#include "cpp/platform/file.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/json.h"
#include "cpp/runtime/utf8.h"

namespace npusim {
namespace {

constexpr size_t kMaxHeader = 100'000'000;  // the limit of the format's own implementation
constexpr size_t kMaxRank = 64;

struct DTypeEntry {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;
};
constexpr DTypeEntry kDTypes[] = {
    {"F64", 64, DType::kFloat64},
    {"F32", 32, DType::kFloat32},
    {"F16", 16, DType::kFloat16},
    {"BF16", 16, DType::kBfloat16},
    {"I64", 64, DType::kInt64},
    {"I32", 32, DType::kInt32},
    {"I16", 16, DType::kInt16},
    {"I8", 8, DType::kInt8},
    {"U8", 8, DType::kUint8},
    {"BOOL", 8, DType::kBool},
    {"U64", 64, {}},
    {"U32", 32, {}},
    {"U16", 16, {}},
    {"F8_E4M3", 8, DType::kUint8},  // by its bits: a program that computes with it has a table
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"C64", 64, {}},
};

// A tensor as its header describes it; begin and end count from the start of the data.
struct HeaderEntry {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
};

class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& what) : json_(text, what) {}

  // Fills `metadata` from "__metadata__".
  std::vector<HeaderEntry> read(std::map<std::string, std::string>& metadata) {
    std::vector<HeaderEntry> entries;
    bool has_metadata = false;
    json_.object([&](std::string name) {
      if (name == "__metadata__") {
        if (has_metadata) json_.refuse("'__metadata__' appears twice");
        has_metadata = true;
        json_.object([&](const std::string& key) { metadata[key] = json_.string(); });
      } else {
        entries.push_back(read_entry(std::move(name)));
      }
    });
    json_.end();
    return entries;
  }

 private:
  HeaderEntry read_entry(std::string name) {
    HeaderEntry entry;
    entry.name = std::move(name);
    unsigned seen = 0;
    json_.object([&](const std::string& field) {
      const unsigned bit = read_field(field, entry);
      if ((seen & bit) != 0) json_.refuse("'" + field + "' appears twice");
      seen |= bit;
    });
    if (seen != 7) json_.refuse("a tensor needs dtype, shape and data_offsets");
    return entry;
  }

  // Returns a bit that stands for the field.
  unsigned read_field(const std::string& field, HeaderEntry& entry) {
    if (field == "dtype") {
      entry.dtype = json_.string();
      return 1;
    }
    if (field == "shape") {
      json_.array([&] {
        if (entry.shape.size() == kMaxRank) json_.refuse("more than 64 dimensions");
        entry.shape.push_back(json_.natural());
      });
      return 2;
    }
    if (field != "data_offsets") json_.refuse("unknown field " + quote_name(field));
    std::vector<int64_t> offsets;
    json_.array([&] {
      if (offsets.size() == 2) json_.refuse("data_offsets are two numbers");
      offsets.push_back(json_.natural());
    });
    if (offsets.size() != 2) json_.refuse("data_offsets are two numbers");
    entry.begin = offsets[0];
    entry.end = offsets[1];
    return 4;
  }

  JsonReader json_;
};

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::kFormat, what + ": " + why + ".");
}

const DTypeEntry* find_dtype(std::string_view name) {
  const auto* found = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                   [&](const DTypeEntry& entry) { return entry.name == name; });
  return found == std::end(kDTypes) ? nullptr : found;
}

// Bytes of a dense tensor; refuses products that pass what a file can hold, strides included.
int64_t tensor_bytes(const HeaderEntry& entry, int64_t bits, const std::string& what) {
  constexpr int64_t kMax = int64_t{1} << 56;  // in bits: 8192 TiB
  int64_t extent = bits;
  bool empty = false;
  for (const int64_t dim : entry.shape) {
    if (dim > kMax / extent)
      refuse(what, "tensor " + quote_name(entry.name) + " has an impossible shape");
    if (dim == 0) {
      empty = true;
    } else {
      extent *= dim;
    }
  }
  return empty ? 0 : extent / 8;
}

CheckpointTensor make_tensor(HeaderEntry entry, std::span<const std::byte> data,
                             const std::string& what) {
  const DTypeEntry* dtype = find_dtype(entry.dtype);
  const int64_t stored = entry.end - entry.begin;
  const int64_t needed = tensor_bytes(entry, dtype != nullptr ? dtype->bits : 8, what);
  if (dtype != nullptr && needed != stored) {
    refuse(what, "tensor " + quote_name(entry.name) + " takes " + std::to_string(needed) +
                     " bytes by its shape and dtype, and has " + std::to_string(stored));
  }
  const auto bytes = data.subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(stored));
  const auto known = dtype != nullptr ? dtype->dtype : std::nullopt;
  return {std::move(entry.name), std::move(entry.dtype), known, std::move(entry.shape), bytes};
}

// Splits a file into its header's text and its data.
std::pair<std::string_view, std::span<const std::byte>> split(std::span<const std::byte> file,
                                                              const std::string& what) {
  if (file.size() >= 4 && std::memcmp(file.data(), "PK\x03\x04", 4) == 0) {
    refuse(what,
           "this is a zip archive, perhaps a PyTorch checkpoint, and not a safetensors file; "
           "npusim.load_weights in Python reads it, or save it with safetensors");
  }
  uint64_t length = 0;
  if (file.size() < sizeof length) refuse(what, "this is not a safetensors file; it is too short");
  std::memcpy(&length, file.data(), sizeof length);
  if (length > kMaxHeader || length > file.size() - sizeof length) {
    refuse(what, "not a safetensors file, or cut short: its header would take " +
                     std::to_string(length) + " bytes of " + std::to_string(file.size()));
  }
  const auto header = file.subspan(sizeof length, length);
  if (header.empty() || header[0] != std::byte{'{'}) {
    refuse(what, "this is not a safetensors file; its header does not start with '{'");
  }
  return {{reinterpret_cast<const char*>(header.data()), header.size()},
          file.subspan(sizeof length + length)};
}

// Verifies that the entries, in order of place, cover the data exactly.
void check_cover(std::vector<HeaderEntry>& entries, size_t data_size, const std::string& what) {
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin != end || entry.end < entry.begin) {
      refuse(what, "tensor " + quote_name(entry.name) + " lies at bytes " +
                       std::to_string(entry.begin) + " … " + std::to_string(entry.end) +
                       " of the data and should start at " + std::to_string(end) +
                       ": tensors overlap or leave a hole");
    }
    end = entry.end;
  }
  if (static_cast<uint64_t>(end) != data_size) {
    refuse(what, "the tensors take " + std::to_string(end) + " bytes, the file has " +
                     std::to_string(data_size) + " for them; it is cut short or appended to");
  }
}

bool by_name(const CheckpointTensor& a, const CheckpointTensor& b) {
  return a.name < b.name;
}

void sort_distinct(std::vector<CheckpointTensor>& tensors, const std::string& what) {
  std::sort(tensors.begin(), tensors.end(), by_name);
  const auto twice = std::adjacent_find(
      tensors.begin(), tensors.end(),
      [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name == b.name; });
  if (twice != tensors.end()) refuse(what, "tensor " + quote_name(twice->name) + " appears twice");
}

// The names each shard of an index is to supply, by file name.
using Shards = std::map<std::string, std::vector<std::string>>;

Shards read_index(std::string_view text, const std::string& what) {
  Shards shards;
  bool found = false;
  JsonReader json(text, what);
  json.object([&](const std::string& key) {
    if (key != "weight_map") return json.skip();
    if (found) json.refuse("'weight_map' appears twice");
    found = true;
    json.object([&](std::string name) { shards[json.string()].push_back(std::move(name)); });
  });
  json.end();
  if (!found) refuse(what, "this index has no weight_map");
  return shards;
}

// A shard is a file beside its index: a plain name, so that an index cannot reach elsewhere.
void check_plain(const std::string& name, const std::string& what) {
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find_first_of(std::string_view("/\\:\0", 4)) == name.npos;
  if (!plain) refuse(what, "the shard " + quote_name(name) + " is not a file in its folder");
}

// Verifies that all shards are there; names those that are not.
void check_shards(const Shards& shards, const std::filesystem::path& index) {
  std::string missing;
  for (const auto& [file, names] : shards) {
    check_plain(file, platform::path_text(index));
    std::error_code ignored;
    if (std::filesystem::exists(index.parent_path() / platform::path_of(file), ignored)) continue;
    missing += (missing.empty() ? "" : ", ") + file;
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kIo, "Cannot read " + platform::path_text(index) +
                                  ": shards it names are not in its folder: " + missing +
                                  ". Put all shards beside the index.");
}

std::filesystem::path file_in(const std::filesystem::path& folder) {
  for (const char* name : {"model.safetensors.index.json", "model.safetensors"}) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / name, ignored)) return folder / name;
  }
  std::vector<std::filesystem::path> found;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
  }
  if (found.size() == 1) return found[0];
  throw Error(ErrorCode::kIo, "Cannot read " + platform::path_text(folder) + ": the folder has " +
                                  (found.empty() ? "no" : "several") +
                                  " .safetensors files and no index; give one file.");
}

}  // namespace

std::shared_ptr<const Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return open(file_in(path));
  return path.extension() == ".json" ? open_index(path) : open_file(path);
}

std::shared_ptr<const Checkpoint> Checkpoint::open_file(const std::filesystem::path& path) {
  auto checkpoint = std::make_shared<Checkpoint>();
  const auto mapping = checkpoint->mappings_.emplace_back(Mapping::open(path));
  checkpoint->read(mapping->bytes(), platform::path_text(path));
  return checkpoint;
}

void Checkpoint::read(std::span<const std::byte> file, const std::string& what) {
  const auto [mapped, data] = split(file, what);
  const std::string header(mapped);  // as it is now, whatever becomes of the file meanwhile
  auto entries = HeaderReader(header, what).read(metadata_);
  check_cover(entries, data.size(), what);
  tensors_.reserve(entries.size());
  for (auto& entry : entries) tensors_.push_back(make_tensor(std::move(entry), data, what));
  sort_distinct(tensors_, what);
}

std::shared_ptr<const Checkpoint> Checkpoint::open_index(const std::filesystem::path& path) {
  std::error_code ignored;
  const uintmax_t expected = std::filesystem::file_size(path, ignored);
  if (!ignored && expected > kMaxHeader)
    refuse(platform::path_text(path), "this index is larger than 100 MB");
  size_t size = 0;
  const std::vector<FilePage> pages = read_file(path, size);
  const auto shards =
      read_index({reinterpret_cast<const char*>(pages.data()), size}, platform::path_text(path));
  check_shards(shards, path);
  auto checkpoint = std::make_shared<Checkpoint>();
  for (const auto& [file, names] : shards) {
    const auto shard = open_file(path.parent_path() / platform::path_of(file));
    checkpoint->mappings_.push_back(shard->mappings_[0]);
    for (const std::string& name : names) {
      const CheckpointTensor* tensor = shard->find(name);
      if (tensor == nullptr)
        refuse(platform::path_text(path),
               "tensor " + quote_name(name) + " is not in its shard " + file);
      checkpoint->tensors_.push_back(*tensor);
    }
  }
  sort_distinct(checkpoint->tensors_, platform::path_text(path));
  return checkpoint;
}

std::shared_ptr<const Checkpoint> Checkpoint::from_bytes(std::span<const std::byte> file,
                                                         const std::string& what) {
  auto checkpoint = std::make_shared<Checkpoint>();
  checkpoint->read(file, what);
  return checkpoint;
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const CheckpointTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

std::vector<std::string_view> Checkpoint::names() const {
  std::vector<std::string_view> names;
  names.reserve(tensors_.size());
  for (const CheckpointTensor& tensor : tensors_) names.push_back(tensor.name);
  return names;
}

void Checkpoint::check() const {
  for (const auto& mapping : mappings_) mapping->check();
}

void Checkpoint::leave(const CheckpointTensor& tensor) const noexcept {
  for (const auto& mapping : mappings_) mapping->leave(tensor.data);
}

}  // namespace npusim
