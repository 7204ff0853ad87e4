#include "cpp/runtime/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>
#include <system_error>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // systems limit a single write

// A name that no other writer takes, however many there are.
std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  std::random_device random;
  const std::string tail = std::to_string(random()) + std::to_string(random());
  return path.parent_path() / ("." + path.filename().string().substr(0, 48) + "." + tail + ".tmp");
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path) {
  std::error_code ignored;
  path_ = std::filesystem::weakly_canonical(path, ignored);  // a symbolic link keeps pointing
  if (path_.empty()) path_ = path;
  if (std::filesystem::is_directory(path_, ignored)) refuse(EISDIR);
  temporary_ = temporary_beside(path_);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) refuse(errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) refuse(errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) refuse(errno);
  ::close(descriptor_);
  descriptor_ = -1;
}

void AtomicFile::refuse(int error) const {
  throw Error(ErrorCode::kIo, "Cannot write " + path_.string() + ": " +
                                  std::generic_category().message(error) +
                                  ". Choose a place that can be written.");
}

}  // namespace npusim
