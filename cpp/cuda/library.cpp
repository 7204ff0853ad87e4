#include "cpp/cuda/library.h"

#include <dlfcn.h>
#include <link.h>

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
    for (const char* inside : {"", "/lib64", "/lib", "/targets/x86_64-linux/lib"}) {
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
  const auto opened = [](void* handle) { return Library{handle, library_path(handle)}; };
  for (const std::string& name : names) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle != nullptr) return opened(handle);
  }
  for (const std::string& folder : places(folders)) {
    for (const std::string& name : names) {
      const std::string path = folder + "/" + name;
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) continue;
      if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened(handle);
    }
  }
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened(handle);
  }
  return std::nullopt;
}

std::string library_path(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

}  // namespace npusim::cuda
