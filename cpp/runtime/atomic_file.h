// Writing a file whole or not at all: the C++ side of python/npusim/files.py.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <system_error>

#include "cpp/platform/file.h"

namespace npusim {

// Collects bytes under a temporary name in the same folder; commit gives them the path's place in
// one step. Destroyed without commit, it leaves nothing behind.
class AtomicFile {
 public:
  // Throws Error(kIo): the folder is missing or cannot be written, the path is a folder.
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);  // throws Error(kIo)
  void commit();                                 // throws Error(kIo)

 private:
  void refuse_if(const std::error_code& error) const;
  [[noreturn]] void refuse(const std::error_code& error) const;

  std::filesystem::path path_, temporary_;
  platform::File file_;
};

}  // namespace npusim
