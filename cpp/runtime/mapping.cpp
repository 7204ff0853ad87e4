#include "cpp/runtime/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorCode::kIo, "Cannot read " + path.string() + ": " + reason + ".");
}

[[noreturn]] void refuse_errno(const std::filesystem::path& path) {
  refuse(path, std::generic_category().message(errno));
}

class Descriptor {
 public:
  // O_NONBLOCK: opening a pipe must not wait for its writer; a regular file does not care.
  explicit Descriptor(const std::filesystem::path& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number_ < 0) refuse_errno(path);
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const noexcept { return number_; }

 private:
  int number_;
};

size_t regular_size(const Descriptor& file, const std::filesystem::path& path) {
  struct stat status;
  if (::fstat(file.number(), &status) != 0) refuse_errno(path);
  if (S_ISDIR(status.st_mode)) refuse(path, "it is a folder; give the file");
  if (!S_ISREG(status.st_mode)) refuse(path, "it is not a regular file");
  return static_cast<size_t>(status.st_size);
}

}  // namespace

std::shared_ptr<const Mapping> Mapping::open(const std::filesystem::path& path) {
  const Descriptor file(path);
  const size_t size = regular_size(file, path);
  void* start = nullptr;
  if (size != 0) {
    start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
    if (start == MAP_FAILED) refuse_errno(path);
  }
  // The constructor is private, so make_shared cannot be used; the map is owned from here on.
  return std::shared_ptr<const Mapping>(new Mapping({static_cast<std::byte*>(start), size}));
}

Mapping::~Mapping() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void Mapping::leave(std::span<const std::byte> bytes) const noexcept {
  const auto address = [](const std::byte* p) { return reinterpret_cast<uintptr_t>(p); };
  const uintptr_t start = address(bytes_.data()), end = start + bytes_.size();
  if (address(bytes.data()) < start || address(bytes.data()) + bytes.size() > end) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = (address(bytes.data()) + page - 1) / page * page;
  const uintptr_t last = (address(bytes.data()) + bytes.size()) / page * page;
  // Advice: should the system not take it, the pages merely stay.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace npusim
