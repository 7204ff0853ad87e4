#include "cpp/cuda/nvrtc.h"

#include <optional>

#include "cpp/cuda/library.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr size_t kMostLog = 4000;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kDevice, why);
}

}  // namespace

Nvrtc Nvrtc::open(std::span<const std::string> folders) {
  using platform::CudaLibrary, platform::cuda_library_name;
  const std::string names[] = {cuda_library_name(CudaLibrary::kNvrtc, 13),
                               cuda_library_name(CudaLibrary::kNvrtc, 12),
                               cuda_library_name(CudaLibrary::kNvrtc, 0)};
  const std::optional<Library> library = find_library(names, folders);
  if (!library) {
    refuse("NVRTC, CUDA's run-time compiler, was not found (" + names[2] +
           "). Install it: pip install "
           "nvidia-cuda-nvrtc, or set NPUSIM_CUDA_PATH to the folder it lies in.");
  }
  Nvrtc nvrtc;
  nvrtc.path_ = library->path;
  const auto need = [&](const char* symbol, auto& to) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(
        platform::library_symbol(library->handle, symbol));
    if (to == nullptr) refuse(nvrtc.path_ + " is no NVRTC: it has no " + symbol);
  };
  need("nvrtcVersion", nvrtc.version_);
  need("nvrtcGetErrorString", nvrtc.error_string_);
  need("nvrtcCreateProgram", nvrtc.create_);
  need("nvrtcDestroyProgram", nvrtc.destroy_);
  need("nvrtcCompileProgram", nvrtc.compile_);
  need("nvrtcGetProgramLogSize", nvrtc.log_size_);
  need("nvrtcGetProgramLog", nvrtc.log_);
  need("nvrtcGetCUBINSize", nvrtc.cubin_size_);
  need("nvrtcGetCUBIN", nvrtc.cubin_);
  return nvrtc;
}

std::string Nvrtc::version() const {
  int major = 0, minor = 0;
  check(version_(&major, &minor), "tell its version");
  return std::to_string(major) + "." + std::to_string(minor);
}

std::vector<std::byte> Nvrtc::compile(const std::string& source,
                                      std::span<const std::string> options,
                                      const std::string& arch) const {
  std::vector<std::string> words = {"--gpu-architecture=" + arch};
  for (const std::string& option : options) {
    const bool names_arch = option.starts_with("--gpu-architecture") || option.starts_with("-arch");
    if (!names_arch) words.push_back(option);
  }
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  Program program = nullptr;
  check(create_(&program, source.c_str(), "kernel.cu", 0, nullptr, nullptr), "take the source");
  struct Closer {
    const Nvrtc& nvrtc;
    Program& program;
    ~Closer() { nvrtc.destroy_(&program); }
  } const closer{*this, program};
  if (compile_(program, static_cast<int>(arguments.size()), arguments.data()) != 0) {
    refuse("NVRTC " + version() + " cannot compile it for " + arch + ": " + log(program));
  }
  size_t size = 0;
  check(cubin_size_(program, &size), "tell the size of its code");
  std::vector<std::byte> cubin(size);
  check(cubin_(program, reinterpret_cast<char*>(cubin.data())), "hand out its code");
  return cubin;
}

void Nvrtc::check(Result result, const char* what) const {
  if (result != 0) refuse("NVRTC could not " + std::string(what) + ": " + error_string_(result));
}

std::string Nvrtc::log(Program program) const {
  size_t size = 0;
  if (log_size_(program, &size) != 0 || size == 0) return "no log";
  std::string text(size, '\0');
  if (log_(program, text.data()) != 0) return "no log";
  return text.substr(0, std::min(text.find('\0'), kMostLog));
}

}  // namespace npusim::cuda
