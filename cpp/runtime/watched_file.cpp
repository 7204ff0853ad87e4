#include "cpp/runtime/watched_file.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "cpp/platform/file_maps.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

// Opens the file of a map, if it is the one that the name stands for by now.
platform::File open_file_of(const platform::FileMap& map) {
  std::error_code error;
  platform::File file = platform::File::open(platform::path_of(map.path), error);
  if (error) return {};
  const bool same = file.state(error).number == map.number && !error;
  return same ? std::move(file) : platform::File();
}

}  // namespace

WatchedFile::WatchedFile(std::filesystem::path path, platform::File file,
                         std::span<const std::byte> bytes, bool writable)
    : path_(std::move(path)), file_(std::move(file)), before_(state()), range_(bytes, writable) {}

platform::FileState WatchedFile::state() const noexcept {
  std::error_code ignored;
  return file_.is_open() ? file_.state(ignored) : platform::FileState{};
}

void WatchedFile::check() const {
  const platform::FileState now = state();
  if (!range_.is_damaged() && now == before_) return;
  const bool shorter = range_.is_damaged() || now.size < before_.size;
  throw Error(
      ErrorCode::kIo,
      platform::path_text(path_) + (shorter ? " was cut short" : " was written to") +
          " while its weights were in use where the file is mapped; what was computed since "
          "may be wrong. Load the weights again, with copy=True to be independent of the "
          "file; replace such files by renaming, which leaves the old one to who uses it.");
}

std::vector<std::unique_ptr<const WatchedFile>> watch_files_behind(
    std::span<const std::span<const std::byte>> memory) {
  std::vector<std::unique_ptr<const WatchedFile>> files;
  if (memory.empty()) return files;
  const std::vector<platform::FileMap> maps = platform::file_maps();
  std::set<size_t> used;
  for (const std::span<const std::byte> bytes : memory) {
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    const auto behind = std::upper_bound(
        maps.begin(), maps.end(), address,
        [](uintptr_t wanted, const platform::FileMap& map) { return wanted < map.begin; });
    if (bytes.empty() || behind == maps.begin() || address >= std::prev(behind)->end) continue;
    used.insert(static_cast<size_t>(std::prev(behind) - maps.begin()));
  }
  for (const size_t index : used) {
    const platform::FileMap& map = maps[index];
    if (map.shared && map.writable) continue;  // its owner means to change the file
    const std::span bytes(reinterpret_cast<const std::byte*>(map.begin), map.end - map.begin);
    files.push_back(
        std::make_unique<const WatchedFile>(map.path, open_file_of(map), bytes, map.writable));
  }
  return files;
}

}  // namespace npusim
