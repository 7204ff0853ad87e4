#include "cpp/runtime/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorCode::kIo, "Cannot read " + path.string() + ": " + reason + ".");
}

[[noreturn]] void refuse_errno(const std::filesystem::path& path) {
  refuse(path, std::generic_category().message(errno));
}

// O_NONBLOCK: opening a pipe must not wait for its writer; a regular file does not care.
Descriptor open_to_read(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number() < 0) refuse_errno(path);
  return file;
}

size_t regular_size(const Descriptor& file, const std::filesystem::path& path) {
  struct stat status;
  if (::fstat(file.number(), &status) != 0) refuse_errno(path);
  if (S_ISDIR(status.st_mode)) refuse(path, "it is a folder; give the file");
  if (!S_ISREG(status.st_mode)) refuse(path, "it is not a regular file");
  return static_cast<size_t>(status.st_size);
}

}  // namespace

std::shared_ptr<const Mapping> Mapping::open(const std::filesystem::path& path) {
  Descriptor file = open_to_read(path);
  const size_t size = regular_size(file, path);
  void* start = nullptr;
  if (size != 0) {
    start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
    if (start == MAP_FAILED) refuse_errno(path);
  }
  // The constructor is private, so make_shared cannot be used; the map is owned from here on.
  return std::shared_ptr<const Mapping>(
      new Mapping(path, std::move(file), {static_cast<std::byte*>(start), size}));
}

Mapping::Mapping(const std::filesystem::path& path, Descriptor file,
                 std::span<const std::byte> bytes)
    : bytes_(bytes),
      watched_(std::make_unique<const WatchedFile>(path, std::move(file), bytes, false)) {}

Mapping::~Mapping() {
  watched_.reset();  // before the memory goes
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

std::vector<FilePage> read_file(const std::filesystem::path& path, size_t& bytes) {
  const Descriptor file = open_to_read(path);
  bytes = regular_size(file, path);
  const auto memory =
      static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > memory) refuse(path, "it is larger than the memory of this machine");
  std::vector<FilePage> pages((bytes + sizeof(FilePage) - 1) / sizeof(FilePage));
  for (size_t done = 0; done < bytes;) {
    constexpr size_t kMostAtOnce = size_t{1} << 30;  // systems limit a single read
    std::byte* const to = reinterpret_cast<std::byte*>(pages.data()) + done;
    const ssize_t count = ::read(file.number(), to, std::min(bytes - done, kMostAtOnce));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_errno(path);
    if (count == 0) refuse(path, "it was cut short while it was read");
    done += static_cast<size_t>(count);
  }
  return pages;
}

}  // namespace npusim
