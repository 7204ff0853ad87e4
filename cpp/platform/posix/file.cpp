#include "cpp/platform/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace npusim::platform {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // systems limit a single read or write

// Of a call that fails by a negative number.
void tell(std::error_code& error, bool failed) noexcept {
  error = failed ? std::error_code(errno, std::generic_category()) : std::error_code();
}

int number(intptr_t handle) noexcept {
  return static_cast<int>(handle);
}

// Once more where a signal came between.
template <typename Call>
size_t transferred(const Call& call, std::error_code& error) noexcept {
  ssize_t count = 0;
  do count = call();
  while (count < 0 && errno == EINTR);
  tell(error, count < 0);
  return count < 0 ? 0 : static_cast<size_t>(count);
}

}  // namespace

// O_NONBLOCK: opening a pipe must not wait for its writer; a regular file does not care.
File File::open(const std::filesystem::path& path, std::error_code& error) noexcept {
  const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  tell(error, opened < 0);
  return File(opened);
}

File File::create(const std::filesystem::path& path, std::error_code& error) noexcept {
  const int made = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  tell(error, made < 0);
  return File(made);
}

FileState File::state(std::error_code& error) const noexcept {
  struct stat status{};
  const bool failed = ::fstat(number(handle_), &status) != 0;
  tell(error, failed);
  if (failed) return {};
  const FileKind kind = S_ISREG(status.st_mode)   ? FileKind::kRegular
                        : S_ISDIR(status.st_mode) ? FileKind::kFolder
                                                  : FileKind::kOther;
#if defined(__APPLE__)
  const timespec& changed = status.st_mtimespec;
#else
  const timespec& changed = status.st_mtim;
#endif
  return {kind, status.st_size, changed.tv_sec, changed.tv_nsec,
          static_cast<uint64_t>(status.st_ino)};
}

size_t File::read(std::span<std::byte> to, std::error_code& error) const noexcept {
  const size_t most = std::min(to.size(), kMostAtOnce);
  return transferred([&] { return ::read(number(handle_), to.data(), most); }, error);
}

size_t File::write(std::span<const std::byte> from, std::error_code& error) const noexcept {
  const size_t most = std::min(from.size(), kMostAtOnce);
  return transferred([&] { return ::write(number(handle_), from.data(), most); }, error);
}

void File::flush(std::error_code& error) const noexcept {
  tell(error, ::fsync(number(handle_)) != 0);
}

void File::close() noexcept {
  if (is_open()) ::close(number(handle_));
  handle_ = kNone;
}

std::string path_text(const std::filesystem::path& path) {
  return path.string();
}

std::filesystem::path path_of(std::string_view text) {
  return text;
}

}  // namespace npusim::platform
