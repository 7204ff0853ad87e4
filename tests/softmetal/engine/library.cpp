#include "engine/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
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

// A process that compiles one text after the other (msl/compile_library.py); it ends with this one.
class Compiler {
 public:
  // What refuses the text, empty where nothing does.
  std::string ask(const std::vector<std::string>& words) {
    std::string line;
    for (const std::string& word : words) line += word + '\0';
    line += '\0';
    if (owner_ != getpid()) start();  // a forked child must not speak in its parent's place
    std::string said;
    if (!send_all(line) || !receive(&said)) {
      close(channel_);
      owner_ = 0;
      return "the process that compiles MSL ended";
    }
    return said;
  }

 private:
  void start() {
    if (owner_ != 0) close(channel_);
    owner_ = 0;
    std::array<int, 2> ends{-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
    const std::string program = std::string("import sys; sys.path.insert(0, '") + SOFTMETAL_ROOT +
                                "'); from tests.softmetal.msl.compile_library import main;"
                                " sys.exit(main())";
    const std::array<const char*, 5> words = {SOFTMETAL_PYTHON, "-S", "-c", program.c_str(),
                                              nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    posix_spawn_file_actions_adddup2(&actions, 2, 1);
    pid_t child = 0;
    posix_spawnp(&child, words[0], &actions, nullptr, const_cast<char**>(words.data()), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    channel_ = ends[0];
    owner_ = getpid();
  }

  bool send_all(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const ssize_t sent = send(channel_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      at += static_cast<size_t>(sent);
    }
    return true;
  }

  // Up to a zero byte.
  bool receive(std::string* said) {
    std::array<char, 4096> part;
    while (said->empty() || said->back() != '\0') {
      const ssize_t got = recv(channel_, part.data(), part.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      said->append(part.data(), static_cast<size_t>(got));
    }
    said->pop_back();
    return true;
  }

  int channel_ = -1;
  pid_t owner_ = 0;  // the process that started it
};

// Workers of pytest want the same texts: one compiles, the others find what it wrote.
class Lock {
 public:
  explicit Lock(const fs::path& library)
      : path_(library.string() + ".lock"),
        file_(::open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
    while (file_ >= 0 && flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~Lock() {
    if (file_ < 0) return;
    unlink(path_.c_str());  // who waits for it sees the library when it has it
    ::close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::string path_;
  int file_;
};

bool compile(const std::string& source, const Macros& macros, const fs::path& library,
             std::string* error) {
  static auto* compiler = new Compiler;
  const std::string stem = library.string() + "." + std::to_string(getpid());
  const fs::path text = stem + ".metal", built = stem + ".so";
  std::ofstream(text, std::ios::binary) << source;
  std::vector<std::string> words = {"--clang",     SOFTMETAL_CLANG, "--source",
                                    text.string(), "--output",      built.string()};
  for (const auto& [name, value] : macros) words.push_back("--macro=" + name + "=" + value);
  for (const std::string& flag : processor_flags()) words.push_back("--flag=" + flag);
  *error = compiler->ask(words);
  fs::remove(text);
  if (!error->empty()) return false;
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
  bool cached = fs::exists(path);
  if (!cached) {
    const Lock only_one(path);
    cached = fs::exists(path);
    if (!cached && !compile(source, macros, path, error)) return nullptr;
  }
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
