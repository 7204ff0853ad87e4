// Checkpoints in the safetensors format: one file, or shards named by a *.index.json.
//
// Files are mapped, not read: opening costs the header, and a tensor costs what is touched of it.
// Their bytes are untrusted until open returns. The format:
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/runtime/mapping.h"
#include "cpp/runtime/program.h"

namespace npusim {

struct CheckpointTensor {
  std::string name;
  std::string dtype_name;      // the format's own: "F32"
  std::optional<DType> dtype;  // nothing for dtypes npusim does not compute with (U64, C64)
  std::vector<int64_t> shape;
  // Row-major, little-endian, inside the mapping; exactly shape times dtype where the dtype is
  // known. May start at any address: the format does not promise alignment.
  std::span<const std::byte> data;
};

// Immutable. Keeps the files mapped as long as it lives (mapping.h says what that asks of others).
class Checkpoint {
 public:
  // Opens a .safetensors file, an index (any name that ends in .json), or a folder that holds
  // model.safetensors.index.json, model.safetensors, or exactly one .safetensors file.
  // Throws Error(kIo): missing (of shards, all of them are named), unreadable. Error(kFormat):
  // holes, overlaps, duplicates, sizes that differ from shape times dtype, a shard outside the
  // index's folder, malformed JSON.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& path);
  // Reads one file's image; the caller keeps the bytes alive. `what` names them in messages.
  static std::shared_ptr<const Checkpoint> from_bytes(std::span<const std::byte> file,
                                                      const std::string& what);

  // nullptr when there is no tensor of that name. Valid as long as the checkpoint.
  const CheckpointTensor* find(std::string_view name) const;
  // All tensors, sorted by name.
  const std::vector<CheckpointTensor>& tensors() const noexcept { return tensors_; }
  std::vector<std::string_view> names() const;
  // What the header's "__metadata__" says; of an index, nothing.
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  // Throws Error(kIo) when a file was changed in place since it was opened (Mapping::check).
  void check() const;
  // Says that nobody will read a tensor soon: its pages need not stay in memory.
  void leave(const CheckpointTensor& tensor) const noexcept;

 private:
  static std::shared_ptr<const Checkpoint> open_file(const std::filesystem::path& path);
  static std::shared_ptr<const Checkpoint> open_index(const std::filesystem::path& path);

  void read(std::span<const std::byte> file, const std::string& what);

  std::vector<CheckpointTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;
};

}  // namespace npusim
