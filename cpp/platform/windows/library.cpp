#include "cpp/platform/library.h"

#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "cpp/platform/file.h"
#include "cpp/platform/windows/windows_headers.h"

namespace npusim::platform {

// A library that is named by its path finds those it needs beside it.
LibraryHandle open_library(const std::string& name) {
  const std::filesystem::path path = path_of(name);
  const DWORD how = path.is_absolute() ? LOAD_WITH_ALTERED_SEARCH_PATH : 0;
  return LoadLibraryExW(path.c_str(), nullptr, how);
}

LibraryHandle loaded_library(const std::string& name) {
  return GetModuleHandleW(path_of(name).c_str());
}

void* library_symbol(LibraryHandle library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

std::string library_path(LibraryHandle library) {
  wchar_t path[4096];
  const DWORD length = GetModuleFileNameW(static_cast<HMODULE>(library), path, std::size(path));
  return path_text(std::wstring(path, length));
}

std::string cuda_library_name(CudaLibrary library, int version) {
  const std::string number = version == 0 ? "" : std::to_string(version);
  switch (library) {
    case CudaLibrary::kDriver:
      return "nvcuda.dll";
    case CudaLibrary::kNvrtc:
      return "nvrtc64" + (version == 0 ? "" : "_" + number + "0_0") + ".dll";
    case CudaLibrary::kCublasLt:
      return "cublasLt64" + (version == 0 ? "" : "_" + number) + ".dll";
    case CudaLibrary::kCudnn:
      return "cudnn64" + (version == 0 ? "" : "_" + number) + ".dll";
    case CudaLibrary::kNccl:
      return "nccl.dll";
  }
  return "";
}

std::vector<std::string> cuda_toolkit_folders() {
  return {"", "/bin", "/bin/x64"};
}

void set_environment(const char* name, const char* value) {
  _putenv_s(name, value);
}

}  // namespace npusim::platform
