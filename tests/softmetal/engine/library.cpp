#include "engine/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>

#include "engine/settings.h"
#include "engine/threadgroup.h"

namespace softmetal {
namespace {

namespace fs = std::filesystem;

// FNV-1a, 128 bits: names a file of the cache.
class Hash {
 public:
  void add(const std::string& text) {
    for (const unsigned char c : text + '\0') {
      state_ = (state_ ^ c) * kPrime;
    }
  }
  std::string hex() const {
    static const char* digits = "0123456789abcdef";
    std::string text;
    for (int shift = 124; shift >= 0; shift -= 4) {
      text += digits[static_cast<unsigned>(state_ >> shift) & 15];
    }
    return text;
  }

 private:
  __extension__ using Word = unsigned __int128;
  static constexpr Word kPrime = (Word{1} << 88) + 0x13B;
  Word state_ = (Word{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> processor_flags() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return {"-mavx2", "-mfma", "-mf16c"};
  }
#endif
  return {};
}

// Of everything but the text that decides what a library is.
const std::string& compiler_key() {
  static const std::string* key = [] {
    Hash hash;
    const fs::path folder = SOFTMETAL_FOLDER;
    std::vector<fs::path> files = {folder / "engine" / "abi.h"};
    for (const char* name : {"shim", "shim_macros", "msl"}) {
      for (const auto& entry : fs::directory_iterator(folder / name)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) hash.add(read_file(file));
    for (const std::string& flag : processor_flags()) hash.add(flag);
    hash.add(SOFTMETAL_CLANG);
    return new std::string(hash.hex());
  }();
  return *key;
}

// Runs the compiler and returns its status; what it says is in `said`.
int run(const std::vector<std::string>& arguments, const fs::path& output, std::string* said) {
  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.data()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    *said = std::string(words[0]) + ": " + std::strerror(failed);
    return 127;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  *said = read_file(output);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

bool compile(const std::string& source, const Macros& macros, const fs::path& library,
             std::string* error) {
  const std::string stem = library.string() + "." + std::to_string(getpid());
  const fs::path text = stem + ".metal", built = stem + ".so", said = stem + ".log";
  std::ofstream(text, std::ios::binary) << source;
  std::vector<std::string> arguments = {
      SOFTMETAL_PYTHON,
      "-S",
      "-c",
      std::string("import sys; sys.path.insert(0, '") + SOFTMETAL_ROOT +
          "'); from tests.softmetal.msl.compile_library import main; sys.exit(main())",
      "--clang",
      SOFTMETAL_CLANG,
      "--source",
      text.string(),
      "--output",
      built.string()};
  for (const auto& [name, value] : macros) arguments.push_back("--macro=" + name + "=" + value);
  for (const std::string& flag : processor_flags()) arguments.push_back("--flag=" + flag);
  const int status = run(arguments, said, error);
  fs::remove(text);
  fs::remove(said);
  if (status != 0) {
    if (error->empty()) *error = "the compiler ended with " + std::to_string(status);
    return false;
  }
  fs::rename(built, library);
  return true;
}

std::shared_ptr<LoadedLibrary> open(const fs::path& path, std::string* error) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto* tables = handle ? static_cast<const Library*>(dlsym(handle, "softmetal_library")) : nullptr;
  auto* engine_slot = handle ? static_cast<Engine**>(dlsym(handle, "softmetal_engine")) : nullptr;
  if (tables == nullptr || engine_slot == nullptr || tables->abi != kAbi) {
    *error = "the compiled library cannot be loaded: " + path.string();
    return nullptr;
  }
  *engine_slot = &engine();
  auto loaded = std::make_shared<LoadedLibrary>();
  loaded->tables = tables;
  return loaded;
}

}  // namespace

std::shared_ptr<const LoadedLibrary> load_library(const std::string& source, const Macros& macros,
                                                  std::string* error) {
  static std::mutex* mutex = new std::mutex;
  static auto* known = new std::map<std::string, std::shared_ptr<const LoadedLibrary>>;
  const std::lock_guard lock(*mutex);
  Hash hash;
  hash.add(compiler_key());
  hash.add(source);
  for (const auto& [name, value] : macros) {
    hash.add(name);
    hash.add(value);
  }
  const std::string key = hash.hex();
  if (const auto found = known->find(key); found != known->end()) return found->second;
  std::error_code failed;
  fs::create_directories(settings().cache, failed);
  const fs::path path = fs::path(settings().cache) / (key + ".so");
  const bool cached = fs::exists(path);
  if (!cached && !compile(source, macros, path, error)) return nullptr;
  auto loaded = open(path, error);
  if (loaded == nullptr && cached) {  // a damaged file of the cache
    fs::remove(path, failed);
    if (!compile(source, macros, path, error)) return nullptr;
    loaded = open(path, error);
  }
  if (loaded == nullptr) return nullptr;
  loaded->key = key;
  (*known)[key] = loaded;
  return loaded;
}

const Kernel* find_kernel(const Library& library, const std::string& name) {
  for (unsigned i = 0; i < library.kernel_count; ++i) {
    if (name == library.kernels[i].name) return &library.kernels[i];
  }
  return nullptr;
}

unsigned data_type_bytes(unsigned type) {
  // First MTLDataType of a scalar's four (itself, and vectors of 2, 3 and 4), and its bytes.
  static constexpr std::array<std::pair<unsigned, unsigned>, 12> kScalars = {{{3, 4},
                                                                              {16, 2},
                                                                              {29, 4},
                                                                              {33, 4},
                                                                              {37, 2},
                                                                              {41, 2},
                                                                              {45, 1},
                                                                              {49, 1},
                                                                              {53, 1},
                                                                              {81, 8},
                                                                              {85, 8},
                                                                              {121, 2}}};
  for (const auto& [first, bytes] : kScalars) {
    if (type >= first && type < first + 4) {
      const unsigned count = type - first + 1;
      return bytes * (count == 3 ? 4 : count);
    }
  }
  return 0;
}

}  // namespace softmetal
