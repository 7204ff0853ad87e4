#include "cpp/platform/file_maps.h"

#include <cstdio>
#include <fstream>

namespace npusim::platform {

std::vector<FileMap> file_maps() {
  std::vector<FileMap> maps;
  std::ifstream file("/proc/self/maps");
  for (std::string line; std::getline(file, line);) {
    unsigned long long begin = 0, end = 0, number = 0;
    char rights[5] = {};
    int name = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %4s %*x %*x:%*x %llu %n", &begin, &end, rights,
                    &number, &name) < 4 ||
        number == 0) {
      continue;
    }
    FileMap map{begin, end, rights[1] == 'w', rights[3] == 's', number, line.substr(name)};
    if (map.path.starts_with('/') && !map.path.ends_with(" (deleted)")) maps.push_back(map);
  }
  return maps;
}

}  // namespace npusim::platform
