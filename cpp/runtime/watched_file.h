// A file whose bytes are used where they are mapped: whether it still is what it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "cpp/runtime/file_faults.h"

namespace npusim {

// An open file, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&&) = delete;
  int number() const noexcept { return number_; }

 private:
  int number_;  // negative: none
};

class WatchedFile {
 public:
  // `bytes` show the file; the descriptor stays open, so that it is asked about this very file,
  // whatever is at the path by then. Without one, only lost pages are noticed.
  WatchedFile(std::filesystem::path path, Descriptor file, std::span<const std::byte> bytes,
              bool writable);

  // Throws Error(kIo) that names the file: pages of it were lost, or its size or time of last
  // change is another than at construction.
  void check() const;

 private:
  // What differs in a file that was written to.
  struct State {
    int64_t size = 0, seconds = 0, nanoseconds = 0;
    bool operator==(const State&) const = default;
  };
  State state() const noexcept;

  std::filesystem::path path_;
  Descriptor file_;
  State before_;
  WatchedRange range_;
};

// Private or read-only maps of files that memory of others lies in: those of tensors that another
// library has mapped. `memory` may hold any addresses. Nothing where the system does not tell.
std::vector<std::unique_ptr<const WatchedFile>> watch_files_behind(
    std::span<const std::span<const std::byte>> memory);

}  // namespace npusim
