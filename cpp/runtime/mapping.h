// Read-only memory maps of files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace npusim {

// A whole regular file, mapped until the last owner lets go. Replacing the file by rename leaves
// the mapping as it was. Changing the file in place changes what is seen, and truncating it makes
// the lost pages fault (SIGBUS): who maps a file vouches that nobody does either.
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

  // Page-aligned; empty for an empty file.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit Mapping(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace npusim
