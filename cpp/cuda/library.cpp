#include "cpp/cuda/library.h"

#include <cstdlib>
#include <filesystem>

namespace npusim::cuda {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> places(std::span<const std::string> folders) {
  std::vector<std::string> found;
  const auto add_toolkit = [&](const std::string& root) {
    if (root.empty()) return;
    for (const std::string& inside : platform::cuda_toolkit_folders()) {
      found.push_back(root + inside);
    }
  };
  add_toolkit(environment("NPUSIM_CUDA_PATH"));
  found.insert(found.end(), folders.begin(), folders.end());
  add_toolkit(environment("CUDA_PATH"));
  add_toolkit(environment("CUDA_HOME"));
  return found;
}

}  // namespace

std::optional<Library> find_library(std::span<const std::string> names,
                                    std::span<const std::string> folders) {
  const auto opened = [](platform::LibraryHandle handle) {
    return Library{handle, platform::library_path(handle)};
  };
  for (const std::string& name : names) {
    if (auto* handle = platform::loaded_library(name)) return opened(handle);
  }
  for (const std::string& folder : places(folders)) {
    for (const std::string& name : names) {
      const std::string path = folder + "/" + name;
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) continue;
      if (auto* handle = platform::open_library(path)) return opened(handle);
    }
  }
  for (const std::string& name : names) {
    if (auto* handle = platform::open_library(name)) return opened(handle);
  }
  return std::nullopt;
}

}  // namespace npusim::cuda
