#include "cpp/platform/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>

namespace npusim::platform {

LibraryHandle open_library(const std::string& name) {
  return ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
}

LibraryHandle loaded_library(const std::string& name) {
  return ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

void* library_symbol(LibraryHandle library, const char* name) {
  return ::dlsym(library, name);
}

std::string library_path(LibraryHandle library) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

std::string cuda_library_name(CudaLibrary library, int version) {
  const char* const names[] = {"libcuda.so", "libnvrtc.so", "libcublasLt.so", "libcudnn.so",
                               "libnccl.so"};
  const std::string name = names[static_cast<int>(library)];
  return version == 0 ? name : name + "." + std::to_string(version);
}

std::vector<std::string> cuda_toolkit_folders() {
  return {"", "/lib64", "/lib", "/targets/x86_64-linux/lib"};
}

void set_environment(const char* name, const char* value) {
  ::setenv(name, value, 1);
}

}  // namespace npusim::platform
