#include "cpp/runtime/mapping.h"

#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

#include "cpp/platform/memory.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorCode::kIo, "Cannot read " + platform::path_text(path) + ": " + reason + ".");
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::error_code& error) {
  refuse(path, error.message());
}

platform::File open_to_read(const std::filesystem::path& path) {
  std::error_code error;
  platform::File file = platform::File::open(path, error);
  if (error) refuse(path, error);
  return file;
}

size_t regular_size(const platform::File& file, const std::filesystem::path& path) {
  std::error_code error;
  const platform::FileState state = file.state(error);
  if (error) refuse(path, error);
  if (state.kind == platform::FileKind::kFolder) refuse(path, "it is a folder; give the file");
  if (state.kind != platform::FileKind::kRegular) refuse(path, "it is not a regular file");
  return static_cast<size_t>(state.size);
}

}  // namespace

std::shared_ptr<const Mapping> Mapping::open(const std::filesystem::path& path) {
  platform::File file = open_to_read(path);
  const size_t size = regular_size(file, path);
  void* start = nullptr;
  if (size != 0) {
    std::error_code error;
    start = platform::map_file(file, size, error);
    if (start == nullptr) refuse(path, error);
  }
  // The constructor is private, so make_shared cannot be used; the map is owned from here on.
  return std::shared_ptr<const Mapping>(
      new Mapping(path, std::move(file), {static_cast<std::byte*>(start), size}));
}

Mapping::Mapping(const std::filesystem::path& path, platform::File file,
                 std::span<const std::byte> bytes)
    : bytes_(bytes),
      watched_(std::make_unique<const WatchedFile>(path, std::move(file), bytes, false)) {}

Mapping::~Mapping() {
  watched_.reset();  // before the memory goes
  if (!bytes_.empty()) {
    platform::unmap_file(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void Mapping::leave(std::span<const std::byte> bytes) const noexcept {
  const auto address = [](const std::byte* p) { return reinterpret_cast<uintptr_t>(p); };
  const uintptr_t start = address(bytes_.data()), end = start + bytes_.size();
  if (address(bytes.data()) < start || address(bytes.data()) + bytes.size() > end) return;
  const auto page = platform::page_bytes();
  const uintptr_t first = (address(bytes.data()) + page - 1) / page * page;
  const uintptr_t last = (address(bytes.data()) + bytes.size()) / page * page;
  if (first < last) platform::leave_pages(reinterpret_cast<void*>(first), last - first);
}

std::vector<FilePage> read_file(const std::filesystem::path& path, size_t& bytes) {
  const platform::File file = open_to_read(path);
  bytes = regular_size(file, path);
  if (bytes > platform::machine_bytes()) {
    refuse(path, "it is larger than the memory of this machine");
  }
  std::vector<FilePage> pages((bytes + sizeof(FilePage) - 1) / sizeof(FilePage));
  for (size_t done = 0; done < bytes;) {
    std::error_code error;
    const std::span left(reinterpret_cast<std::byte*>(pages.data()) + done, bytes - done);
    const size_t count = file.read(left, error);
    if (error) refuse(path, error);
    if (count == 0) refuse(path, "it was cut short while it was read");
    done += count;
  }
  return pages;
}

}  // namespace npusim
