// Files as memory: maps of them, and copies.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "cpp/runtime/watched_file.h"

namespace npusim {

// A whole regular file, mapped until the last owner lets go. Replacing the file by rename leaves
// the mapping as it was. Changing the file in place changes what is seen, and truncating it turns
// the lost pages to zeros: who uses what it read asks afterwards whether that happened (check).
class Mapping {
 public:
  // Throws Error(kIo): missing, unreadable, not a regular file, or the system refuses to map it.
  static std::shared_ptr<const Mapping> open(const std::filesystem::path& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Gives the memory of the whole pages within `bytes` back to the system; whoever reads them again
  // reads the file again. Bytes of another mapping are left alone.
  void leave(std::span<const std::byte> bytes) const noexcept;

  // Throws Error(kIo) when the file was changed in place since it was mapped. Costs a system call.
  void check() const { watched_->check(); }

  // Page-aligned; empty for an empty file.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  Mapping(const std::filesystem::path& path, platform::File file, std::span<const std::byte> bytes);
  std::span<const std::byte> bytes_;
  std::unique_ptr<const WatchedFile> watched_;
};

// A page of a copied file: copies are aligned as maps are.
struct alignas(4096) FilePage {
  std::byte bytes[4096];
};

// Reads a whole regular file; `bytes` becomes its size. Throws Error(kIo) as Mapping::open does.
std::vector<FilePage> read_file(const std::filesystem::path& path, size_t& bytes);

}  // namespace npusim
