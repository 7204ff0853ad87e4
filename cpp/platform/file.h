// Files as the operating system has them: open ones, what they are, reading and writing. Refusals
// are error codes; who knows what was tried makes the sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace npusim::platform {

enum class FileKind { kRegular, kFolder, kOther };

// What differs in a file that was written to, and what tells it from others.
struct FileState {
  FileKind kind = FileKind::kOther;
  int64_t size = 0;                      // bytes
  int64_t seconds = 0, nanoseconds = 0;  // of the last change
  uint64_t number = 0;                   // of the file in its file system
  bool operator==(const FileState&) const = default;
};

// An open file, closed at the end. On refusal `error` is set, else it is cleared.
class File {
 public:
  File() noexcept = default;
  ~File() { close(); }
  File(File&& other) noexcept : handle_(std::exchange(other.handle_, kNone)) {}
  File& operator=(File&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  // Opens to read; never waits, as for the writer of a pipe.
  static File open(const std::filesystem::path& path, std::error_code& error) noexcept;
  // Makes a file that was not there, to write.
  static File create(const std::filesystem::path& path, std::error_code& error) noexcept;

  bool is_open() const noexcept { return handle_ != kNone; }
  intptr_t handle() const noexcept { return handle_; }  // a descriptor, or Windows' HANDLE

  FileState state(std::error_code& error) const noexcept;
  // How many bytes were read, 0 at the end, or written: at most those of the span.
  size_t read(std::span<std::byte> to, std::error_code& error) const noexcept;
  size_t write(std::span<const std::byte> from, std::error_code& error) const noexcept;
  // Returns when what was written would outlive the machine.
  void flush(std::error_code& error) const noexcept;
  void close() noexcept;

 private:
  static constexpr intptr_t kNone = -1;
  explicit File(intptr_t handle) noexcept : handle_(handle) {}
  intptr_t handle_ = kNone;
};

// Paths are UTF-8 in messages and in the C interface, also where the system has another form.
std::string path_text(const std::filesystem::path& path);
std::filesystem::path path_of(std::string_view text);

}  // namespace npusim::platform
