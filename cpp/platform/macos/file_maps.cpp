#include "cpp/platform/file_maps.h"

namespace npusim::platform {

std::vector<FileMap> file_maps() {
  return {};
}

}  // namespace npusim::platform
