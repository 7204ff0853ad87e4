#include "cpp/runtime/watched_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

// A line of /proc/self/maps.
struct Map {
  uintptr_t begin = 0, end = 0;
  bool writable = false, shared = false;
  uint64_t inode = 0;
  std::string path;
};

// Maps of files that still have a name, in order of address.
std::vector<Map> file_maps() {
  std::vector<Map> maps;
  std::ifstream file("/proc/self/maps");
  for (std::string line; std::getline(file, line);) {
    unsigned long long begin = 0, end = 0, inode = 0;
    char rights[5] = {};
    int name = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %4s %*x %*x:%*x %llu %n", &begin, &end, rights, &inode,
                    &name) < 4 ||
        inode == 0) {
      continue;
    }
    Map map{begin, end, rights[1] == 'w', rights[3] == 's', inode, line.substr(name)};
    if (map.path.starts_with('/') && !map.path.ends_with(" (deleted)")) maps.push_back(map);
  }
  return maps;
}

// Opens the file of a map, if it is the one that the name stands for by now.
Descriptor open_file_of(const Map& map) {
  Descriptor file(::open(map.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  const bool same = file.number() >= 0 && ::fstat(file.number(), &status) == 0 &&
                    static_cast<uint64_t>(status.st_ino) == map.inode;
  return same ? std::move(file) : Descriptor(-1);
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

WatchedFile::WatchedFile(std::filesystem::path path, Descriptor file,
                         std::span<const std::byte> bytes, bool writable)
    : path_(std::move(path)), file_(std::move(file)), before_(state()), range_(bytes, writable) {}

WatchedFile::State WatchedFile::state() const noexcept {
  struct stat status{};
  if (file_.number() < 0 || ::fstat(file_.number(), &status) != 0) return {};
#if defined(__APPLE__)
  const timespec& changed = status.st_mtimespec;
#else
  const timespec& changed = status.st_mtim;
#endif
  return {status.st_size, changed.tv_sec, changed.tv_nsec};
}

void WatchedFile::check() const {
  const State now = state();
  if (!range_.is_damaged() && now == before_) return;
  const bool shorter = range_.is_damaged() || now.size < before_.size;
  throw Error(
      ErrorCode::kIo,
      path_.string() + (shorter ? " was cut short" : " was written to") +
          " while its weights were in use where the file is mapped; what was computed since "
          "may be wrong. Load the weights again, with copy=True to be independent of the "
          "file; replace such files by renaming, which leaves the old one to who uses it.");
}

std::vector<std::unique_ptr<const WatchedFile>> watch_files_behind(
    std::span<const std::span<const std::byte>> memory) {
  std::vector<std::unique_ptr<const WatchedFile>> files;
  if (memory.empty()) return files;
  const std::vector<Map> maps = file_maps();
  std::set<size_t> used;
  for (const std::span<const std::byte> bytes : memory) {
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    const auto behind =
        std::upper_bound(maps.begin(), maps.end(), address,
                         [](uintptr_t wanted, const Map& map) { return wanted < map.begin; });
    if (bytes.empty() || behind == maps.begin() || address >= std::prev(behind)->end) continue;
    used.insert(static_cast<size_t>(std::prev(behind) - maps.begin()));
  }
  for (const size_t index : used) {
    const Map& map = maps[index];
    if (map.shared && map.writable) continue;  // its owner means to change the file
    const std::span bytes(reinterpret_cast<const std::byte*>(map.begin), map.end - map.begin);
    files.push_back(
        std::make_unique<const WatchedFile>(map.path, open_file_of(map), bytes, map.writable));
  }
  return files;
}

}  // namespace npusim
