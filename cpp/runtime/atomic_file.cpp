#include "cpp/runtime/atomic_file.h"

#include <random>
#include <string>
#include <system_error>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

// A name that no other writer takes, however many there are.
std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  std::random_device random;
  const std::string tail = std::to_string(random()) + std::to_string(random());
  return path.parent_path() / ("." + path.filename().string().substr(0, 48) + "." + tail + ".tmp");
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path) {
  std::error_code error;
  path_ = std::filesystem::weakly_canonical(path, error);  // a symbolic link keeps pointing
  if (path_.empty()) path_ = path;
  if (std::filesystem::is_directory(path_, error)) {
    refuse(std::make_error_code(std::errc::is_a_directory));
  }
  temporary_ = temporary_beside(path_);
  file_ = platform::File::create(temporary_, error);
  refuse_if(error);
}

AtomicFile::~AtomicFile() {
  if (!file_.is_open()) return;
  file_.close();
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    std::error_code error;
    const size_t written = file_.write(bytes, error);
    refuse_if(error);
    bytes = bytes.subspan(written);
  }
}

void AtomicFile::commit() {
  std::error_code error;
  file_.flush(error);
  refuse_if(error);
  std::filesystem::rename(temporary_, path_, error);
  refuse_if(error);
  file_.close();
}

void AtomicFile::refuse_if(const std::error_code& error) const {
  if (error) refuse(error);
}

void AtomicFile::refuse(const std::error_code& error) const {
  throw Error(ErrorCode::kIo, "Cannot write " + platform::path_text(path_) + ": " +
                                  error.message() + ". Choose a place that can be written.");
}

}  // namespace npusim
