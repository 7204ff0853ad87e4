// A file whose bytes are used where they are mapped: whether it still is what it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "cpp/platform/file.h"
#include "cpp/platform/file_faults.h"

namespace npusim {

class WatchedFile {
 public:
  // `bytes` show the file; the file stays open, so that it is asked about this very file,
  // whatever is at the path by then. Without one, only lost pages are noticed.
  WatchedFile(std::filesystem::path path, platform::File file, std::span<const std::byte> bytes,
              bool writable);

  // Throws Error(kIo) that names the file: pages of it were lost, or its size or time of last
  // change is another than at construction.
  void check() const;

 private:
  platform::FileState state() const noexcept;

  std::filesystem::path path_;
  platform::File file_;
  platform::FileState before_;
  platform::WatchedRange range_;
};

// Private or read-only maps of files that memory of others lies in: those of tensors that another
// library has mapped. `memory` may hold any addresses. Nothing where the system does not tell.
std::vector<std::unique_ptr<const WatchedFile>> watch_files_behind(
    std::span<const std::span<const std::byte>> memory);

}  // namespace npusim
