// Which files the memory of this process shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace npusim::platform {

struct FileMap {
  uintptr_t begin = 0, end = 0;
  bool writable = false, shared = false;
  uint64_t number = 0;  // of the file in its file system: FileState
  std::string path;
};

// Maps of files that still have a name, in order of address. Empty where the system does not tell.
std::vector<FileMap> file_maps();

}  // namespace npusim::platform
