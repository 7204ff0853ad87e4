#include "cpp/platform/processor.h"

#include <fstream>

namespace npusim::platform {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(": ") + 2);
  }
  return "";
}

}  // namespace npusim::platform
