// Images of CUDA kernels: what is read, what is refused, and what becomes of a stored source. None
// of it needs a driver; compiling needs NVRTC, and is left out where that is not found.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "cpp/cuda/image.h"
#include "cpp/cuda/kernel_cache.h"
#include "cpp/cuda/library.h"
#include "cpp/cuda/nvrtc.h"
#include "cpp/device_code/cache_folder.h"
#include "cpp/device_code/inflate.h"
#include "tests/cpp/check.h"
#include "tests/cpp/cuda_image.h"

namespace npusim::tests {
namespace {

using namespace npusim::cuda;

// zlib streams of the three kinds of blocks, in hexadecimal.
constexpr const char* kFixed = "78014b4c4a4e8421858cd49c9c7c08090070120901";
constexpr const char* kStored = "7801010b00f4ff73746f72656420746578741b190477";
constexpr const char* kDynamic =
    "78da5d92310e43310843afc20132044848729c4aedd0b1ad7affe23fe18e41c87e36e9f2797d6fefc75d9e1f"
    "e94db4beb589d5f768e2f57d9a0cda8f26b30e6c36893af0dc5824991abb0e224d4e1deca4d04e361da04c6a"
    "d822581da9a4ce7ce9a68c7c9248191ad41a9c035b046e1b5a84ee06c7c379d121d10fd01bd18f812dae7aa7"
    "9611fdb47434a29f2bb98ce803f446f4716d11fdbab4887e5d8e5c3db89ce80fe89de80f323a77df518573f9"
    "1d8d39b7af28d6279f12093c788633394550c7357dffdd1cbe144227fec60f4bfbd8bd";

Bytes unhex(const std::string& digits) {
  Bytes bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string squares() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += std::to_string(i) + " squared is " + std::to_string(i * i) + ", ";
  }
  return text;
}

// A folder that is gone with the object.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("npusim-test-cuda-" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

void reads_an_image() {
  const std::string cubin = stub_cubin("copy"), source = "source";
  const Bytes bytes = image_of(
      R"({"arch": "sm_90", "launches": [
            {"entry": "first", "grid": [2147483647, 65535, 1], "block": [16, 1, 64]},
            {"entry": "second", "grid": [3, 2, 1], "block": [32, 4, 1], "shared": 49152,
             "elsewhere": 64}],
          "maps": [{"operand": 1, "rows": 5, "columns": 64, "stride": 144, "box": 256}],
          "scratch": 4096, "failure": true, "options": ["-DN=1"], "later": {"x": [null]},
          "cubin": [0, 69], "source": [69, 6]})",
      cubin + source);
  const Image image = parse_image(bytes, "kernel 0 (copy)");
  check(image.arch == "sm_90" && image.scratch == 4096 && image.failure, "fields");
  check(image.launches.size() == 2 && image.launches[0].entry == "first", "launches");
  check(image.launches[0].grid[0] == 2147483647 && image.launches[0].block[2] == 64, "geometry");
  check(image.launches[0].shared == 0 && image.launches[1].shared == 49152, "shared memory");
  check(!image.launches[0].elsewhere && image.launches[1].elsewhere == 64, "elsewhere");
  check(image.maps.size() == 1 && image.maps[0].stride == 144 && image.maps[0].box == 256, "maps");
  check(image.options == std::vector<std::string>{"-DN=1"}, "options");
  check(image.cubin.size() == 69 && image.source.size() == 6, "blobs");
  check(parse_image(stub_image("copy", 8), "k").launches[0].grid[0] == 8, "the smallest image");
}

void refuses_unsound_images() {
  const auto refused = [](const std::string& words, const std::string& launch,
                          const std::string& more) {
    const std::string header = R"({"arch": "sm_90", "launches": [)" + launch + "]" + more + "}";
    check_refused(ErrorCode::kFormat, words,
                  [&] { parse_image(image_of(header, stub_cubin("copy")), "kernel 7 (copy)"); });
  };
  const std::string good = R"({"entry": "copy", "grid": [1, 1, 1], "block": [1, 1, 1]})";
  const std::string code = R"(, "cubin": [0, 69])";
  const auto launch = [](const std::string& grid, const std::string& block) {
    return R"({"entry": "copy", "grid": )" + grid + R"(, "block": )" + block + "}";
  };
  refused("kernel 7 (copy)", launch("[0, 1, 1]", "[1, 1, 1]"), code);
  refused("grid is 0", launch("[1, 1, 0]", "[1, 1, 1]"), code);
  refused("grid is 2147483648", launch("[2147483648, 1, 1]", "[1, 1, 1]"), code);
  refused("grid is 65536", launch("[1, 65536, 1]", "[1, 1, 1]"), code);
  refused("fewer than 3", launch("[1, 1]", "[1, 1, 1]"), code);
  refused("more than 3", launch("[1, 1, 1, 1]", "[1, 1, 1]"), code);
  refused("2048 threads", launch("[1, 1, 1]", "[64, 32, 1]"), code);
  refused("block is 65", launch("[1, 1, 1]", "[1, 1, 65]"), code);
  refused("not negative", launch("[-1, 1, 1]", "[1, 1, 1]"), code);
  refused("there is no entry", R"({"grid": [1, 1, 1], "block": [1, 1, 1]})", code);
  refused("not plain text", R"({"entry": "", "grid": [1, 1, 1], "block": [1, 1, 1]})", code);
  refused("appears twice", R"({"entry": "a", "entry": "b"})", code);
  refused("neither cubin nor source", good, "");
  refused("passes the end", good, R"(, "cubin": [0, 70])");
  refused("passes the end", good, R"(, "cubin": [70, 0])");
  refused("passes the end", good, R"(, "source": [1, 1099511627776])");
  refused("[offset, size]", good, R"(, "cubin": [1])");
  refused("damaged", good, R"(, "cubin": [1, 68])");
  refused("scratch is", good, code + R"(, "scratch": 1099511627777)");
  refused("there is no box", good, code + R"(, "maps": [{"operand": 0, "rows": 1, "columns": 1,
          "stride": 2}])");
  refused("box is 257", good, code + R"(, "maps": [{"box": 257}])");
  refused("true or false", good, code + R"(, "failure": 1)");
  refused("',' or '}'", good, code + "]");
  check_refused(ErrorCode::kFormat, "not one for CUDA",
                [] { parse_image(bytes_of_text("NPUCUDA\x02{}"), "k"); });
  check_refused(ErrorCode::kFormat, "passes the end of its image", [] {
    Bytes cut = stub_image("copy", 1);
    cut.resize(40);
    parse_image(cut, "k");
  });
}

// Whatever a byte is changed to, the image is read or refused, and nothing outside it is touched.
void survives_every_changed_byte() {
  const Bytes whole = stub_image("copy", 8, R"(, "scratch": 256, "failure": false)");
  int accepted = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int value : {0, int{'"'}, int{'9'}, int{'}'}, 0xFF}) {
      Bytes changed = whole;
      changed[i] = static_cast<std::byte>(value);
      try {
        parse_image(changed, "k");
        ++accepted;
      } catch (const Error& error) {
        check(error.code() == ErrorCode::kFormat, error.what());
      }
    }
    check_refused(ErrorCode::kFormat, "k:", [&] { parse_image(std::span(whole).first(i), "k"); });
  }
  check(accepted > 0, "changes inside the code are not looked at");
}

void knows_which_code_runs_where() {
  check(runs_on("sm_90", 9, 0) && runs_on("sm_80", 8, 6) && runs_on("sm_120", 12, 0), "runs");
  check(runs_on("sm_90a", 9, 0) && !runs_on("sm_90a", 9, 1), "a suffix means this one alone");
  check(!runs_on("sm_90", 8, 0) && !runs_on("sm_89", 8, 6) && !runs_on("sm_80", 9, 0), "not");
  check(!runs_on("", 9, 0) && !runs_on("sm_", 9, 0) && !runs_on("sm_90ab", 9, 0) &&
            !runs_on("compute_90", 9, 0),
        "no architecture");
}

void refuses_damaged_cubins() {
  Bytes cubin = bytes_of_text(stub_cubin("copy"));
  check(is_cubin(cubin), "sound");
  Bytes tables = cubin;
  tables[58] = tables[60] = std::byte{64};  // 64 sections of 64 bytes
  check(!is_cubin(tables), "sections after the end");
  cubin[18] = std::byte{62};
  check(!is_cubin(cubin), "for the host");
  check(!is_cubin({}) && !is_cubin(bytes_of_text("\x7f"
                                                 "ELF")),
        "too short");
}

void inflates() {
  const auto text = [](const char* digits) { return inflate(unhex(digits), 10000, "k"); };
  check(text(kFixed) == "abcabcabcabc hello hello", "fixed codes");
  check(text(kStored) == "stored text", "a stored block");
  check(text(kDynamic) == squares(), "dynamic codes");
  check_refused(ErrorCode::kFormat, "longer than 700", [] { inflate(unhex(kDynamic), 700, "k"); });
}

void survives_damaged_streams() {
  const Bytes whole = unhex(kDynamic);
  const std::string text = squares();
  for (size_t i = 0; i < whole.size(); ++i) {
    check_refused(ErrorCode::kFormat, "damaged",
                  [&] { inflate(std::span(whole).first(i), 10000, "k"); });
    for (int bit = 0; bit < 8; ++bit) {
      Bytes changed = whole;
      changed[i] ^= static_cast<std::byte>(1 << bit);
      try {
        check(inflate(changed, 10000, "k") == text, "a checksum that lets damage through");
      } catch (const Error& error) {
        check(error.code() == ErrorCode::kFormat, error.what());
      }
    }
  }
}

// Each search has a file name of its own: what an earlier one loaded would be found again.
void searches_libraries_in_order() {
  const Folder folder;
  const std::string soname = "libstub_cuda.so";
  const auto name = [](int search) { return "libnpusim_" + std::to_string(search) + ".so"; };
  const auto put = [&](const char* inside) {
    const std::filesystem::path to = folder.path / inside;
    std::filesystem::create_directories(to);
    std::filesystem::copy_file(NPUSIM_STUB_CUDA, to / soname);
    for (int search = 0; search < 3; ++search) {
      std::filesystem::copy_file(NPUSIM_STUB_CUDA, to / name(search));
    }
    return to.string() + "/";
  };
  const std::string packages = put("packages"), toolkit = put("toolkit/lib64"), own = put("own");
  const std::vector<std::string> folders = {folder.path.string(), packages};
  const auto found = [&](const std::string& wanted, const std::vector<std::string>& where) {
    const std::string names[] = {"libnpusim_absent.so", wanted};
    const auto library = find_library(names, where);
    return library ? std::filesystem::path(library->path).lexically_normal().string() : "none";
  };
  check(found(name(0), {}) == "none", "nothing to find");
  setenv("CUDA_HOME", (folder.path / "toolkit").c_str(), 1);
  check(found(name(0), {}) == toolkit + name(0), "the toolkit");
  check(found(name(1), folders) == packages + name(1), "packages come before the toolkit");
  setenv("NPUSIM_CUDA_PATH", own.c_str(), 1);
  check(found(name(2), folders) == own + name(2), "the environment comes first");
  check(found(soname, folders) == toolkit + name(0), "but for what is loaded already");
  unsetenv("CUDA_HOME");
  unsetenv("NPUSIM_CUDA_PATH");
}

void keeps_compiled_code() {
  const Folder folder;
  const KernelCache cache(folder.path / "deep" / "er");
  const Bytes code = bytes_of_text(stub_cubin("copy"));
  check(!cache.find("key"), "empty at first");
  cache.store("key", code);
  check(cache.find("key") == code, "kept");
  std::ofstream(cache.folder() / "key.cubin") << "damaged";
  check(!cache.find("key"), "damaged code is compiled again");
  KernelCache("/proc/no/such").store("key", code);  // costs nobody anything
  const std::string ab[] = {"a", "b"}, other[] = {"ab", ""};
  check(cache_key(ab).size() == 32 && cache_key(ab) != cache_key(other), "keys keep parts apart");
}

void the_environment_names_the_cache() {
  setenv("NPUSIM_CACHE_DIR", "/a", 1);
  setenv("XDG_CACHE_HOME", "/b", 1);
  check(KernelCache().folder() == "/a/cuda", "npusim's own variable");
  unsetenv("NPUSIM_CACHE_DIR");
  check(KernelCache().folder() == "/b/npusim/cuda", "XDG");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/c", 1);
  check(KernelCache().folder() == "/c/.cache/npusim/cuda", "home");
}

void compiles_where_nvrtc_is_found() {
  try {
    const Nvrtc nvrtc = Nvrtc::open({});
    const std::vector<std::string> options = {"--gpu-architecture=sm_75", "-DFACTOR=2"};
    const std::string source =
        "extern \"C\" __global__ void f(float* x) { x[threadIdx.x] *= FACTOR; }";
    check(is_cubin(nvrtc.compile(source, options, "sm_90")), "a cubin");
    check_refused(ErrorCode::kDevice, "FACTOR", [&] { nvrtc.compile(source, {}, "sm_90"); });
  } catch (const Error& error) {
    check(error.code() == ErrorCode::kDevice &&
              std::string(error.what()).find("pip install nvidia-cuda-nvrtc") != std::string::npos,
          error.what());
  }
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  compiles_where_nvrtc_is_found();  // first: others change the environment
  reads_an_image();
  refuses_unsound_images();
  survives_every_changed_byte();
  knows_which_code_runs_where();
  refuses_damaged_cubins();
  inflates();
  survives_damaged_streams();
  searches_libraries_in_order();
  keeps_compiled_code();
  the_environment_names_the_cache();
  return exit_code();
}
