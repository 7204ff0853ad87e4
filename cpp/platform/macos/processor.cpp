#include "cpp/platform/processor.h"

#include <sys/sysctl.h>

namespace npusim::platform {

std::string processor_name() {
  char name[256] = {};
  size_t bytes = sizeof name - 1;
  return sysctlbyname("machdep.cpu.brand_string", name, &bytes, nullptr, 0) == 0 ? name : "";
}

}  // namespace npusim::platform
