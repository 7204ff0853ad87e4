// NVRTC, NVIDIA's run-time compiler, where it is found: for devices of another architecture than
// the one a program was compiled for.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace npusim::cuda {

class Nvrtc {
 public:
  // Looks in the places of find_library. Throws Error(kDevice) that says how to get it.
  static Nvrtc open(std::span<const std::string> folders);

  const std::string& path() const noexcept { return path_; }
  std::string version() const;  // "13.0"

  // Compiles a self-contained source to a cubin of `arch` ("sm_90"). Throws Error(kDevice) with
  // the compiler's log.
  std::vector<std::byte> compile(const std::string& source, std::span<const std::string> options,
                                 const std::string& arch) const;

 private:
  using Program = struct nvrtcProgram_st*;
  using Result = int;

  void check(Result result, const char* what) const;
  std::string log(Program program) const;

  std::string path_;
  Result (*version_)(int*, int*) = nullptr;
  const char* (*error_string_)(Result) = nullptr;
  Result (*create_)(Program*, const char* source, const char* name, int headers,
                    const char* const* texts, const char* const* names) = nullptr;
  Result (*destroy_)(Program*) = nullptr;
  Result (*compile_)(Program, int options, const char* const*) = nullptr;
  Result (*log_size_)(Program, size_t*) = nullptr;
  Result (*log_)(Program, char*) = nullptr;
  Result (*cubin_size_)(Program, size_t*) = nullptr;
  Result (*cubin_)(Program, char*) = nullptr;
};

}  // namespace npusim::cuda
