// Finding libraries that are used when they are there, such as NVRTC.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/platform/library.h"

namespace npusim::cuda {

struct Library {
  platform::LibraryHandle handle;
  std::string path;
};

// Opens the first of `names` (sonames, the preferred one first) that is found, looking in this
// order: what the process has loaded already; the folder in $NPUSIM_CUDA_PATH; `folders` (Python
// names those of its packages); the toolkit in $CUDA_PATH or $CUDA_HOME; where the system looks.
// The library stays open. Nothing when there is none.
std::optional<Library> find_library(std::span<const std::string> names,
                                    std::span<const std::string> folders);

}  // namespace npusim::cuda
