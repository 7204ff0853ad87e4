// Libraries that are loaded when they are wanted, and what they are called on this system.
#pragma once

#include <string>
#include <vector>

namespace npusim::platform {

// An open library, or null. Libraries are never closed: those that are loaded here keep threads and
// handlers of their own.
using LibraryHandle = void*;

LibraryHandle open_library(const std::string& name);    // a path, or looked for by the system
LibraryHandle loaded_library(const std::string& name);  // only if the process has loaded it
void* library_symbol(LibraryHandle library, const char* name);
std::string library_path(LibraryHandle library);  // the file; empty when the system does not tell

// File names of NVIDIA's libraries; `version` is the major one, 0 for a name without (what is a
// link on Linux is nothing on Windows).
enum class CudaLibrary { kDriver, kNvrtc, kCublasLt, kCudnn, kNccl };
std::string cuda_library_name(CudaLibrary library, int version);
// Folders of libraries inside of an installed CUDA toolkit; the first is the toolkit itself.
std::vector<std::string> cuda_toolkit_folders();
// For libraries that ask the environment when they are loaded.
void set_environment(const char* name, const char* value);

}  // namespace npusim::platform
