// The checkpoint loader: what the format promises is read, what it forbids is refused.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cpp/runtime/safetensors.h"
#include "tests/cpp/check.h"

namespace npusim::tests {
namespace {

namespace fs = std::filesystem;

std::string image(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file += header;
  for (size_t i = 0; i < data; ++i) file += static_cast<char>(i);
  return file;
}

std::shared_ptr<const Checkpoint> read(const std::string& file) {
  return Checkpoint::from_bytes(std::as_bytes(std::span(file)), "test");
}

std::string entry(const char* name, const char* dtype, const char* shape, int begin, int end) {
  return std::string("\"") + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape +
         R"(,"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

void reads_tensors() {
  const std::string file =
      image("{" + entry("b", "F32", "[2,1]", 2, 10) + R"(,"__metadata__":{"format":"pt"},)" +
                entry("a", "F16", "[]", 0, 2) + "," + entry("none", "I64", "[0,3]", 2, 2) + "," +
                entry("odd", "F8_E5M2", "[1]", 10, 11) + "," + entry("later", "Q4", "[9]", 11, 12) +
                "}  ",
            12);
  const auto checkpoint = read(file);
  check(checkpoint->names() == std::vector<std::string_view>{"a", "b", "later", "none", "odd"},
        "names are sorted");
  const CheckpointTensor* b = checkpoint->find("b");
  check(b != nullptr && b->dtype == DType::kFloat32, "dtype");
  check(b->shape == std::vector<int64_t>{2, 1}, "shape");
  check(b->data.size() == 8 && b->data[0] == std::byte{2}, "bytes");
  check(checkpoint->find("a")->shape.empty(), "a scalar has no dimensions");
  check(checkpoint->find("none")->data.empty(), "an empty tensor has no bytes");
  check(!checkpoint->find("odd")->dtype && checkpoint->find("odd")->dtype_name == "F8_E5M2",
        "a dtype without arithmetic is kept by name");
  check(checkpoint->find("c") == nullptr && checkpoint->find("") == nullptr, "unknown names");
}

void refuses(const std::string& file, std::string_view words,
             const std::source_location at = std::source_location::current()) {
  check_refused(ErrorCode::kFormat, words, [&] { read(file); }, at);
}

void refuses_bad_headers() {
  refuses("", "too short");
  refuses("1234567", "too short");
  refuses(std::string(8, '\0'), "does not start with '{'");
  refuses("\xff\xff\xff\xff\xff\xff\xff\xff{}", "cut short");
  refuses(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "cut short");
  refuses(std::string("PK\x03\x04\0\0\0\0", 8), "zip archive");
  refuses(image("[]", 0), "does not start with '{'");
  refuses(image(" {}", 0), "does not start with '{'");
  refuses(image("{}x", 0), "after the end");
  refuses(image(R"({"a":1})", 0), "expected an object");
  refuses(image(R"({"a":{}})", 0), "needs dtype, shape and data_offsets");
  refuses(image(R"({"a":{"dtype":"F32","dtype":"F32"}})", 0), "'dtype' appears twice");
  refuses(image(R"({"a":{"offset":1}})", 0), "unknown field 'offset'");
  refuses(image(R"({"__metadata__":{"a":1}})", 0), "expected a string");
  refuses(image(R"({"__metadata__":{},"__metadata__":{}})", 0), "appears twice");
  refuses(image("{" + entry("a", "F32", "[-1]", 0, 4) + "}", 4), "not negative");
  refuses(image(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1), "two numbers");
  refuses(image(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1), "two numbers");
  std::string dims = "1";
  for (int i = 0; i < 64; ++i) dims += ",1";
  refuses(image("{" + entry("a", "U8", ("[" + dims + "]").c_str(), 0, 1) + "}", 1),
          "64 dimensions");
}

void refuses_bad_data() {
  refuses(image("{" + entry("a", "F32", "[2]", 0, 4) + "}", 4), "takes 8 bytes");
  refuses(image("{" + entry("a", "F32", "[1]", 0, 4) + "}", 3), "cut short");
  refuses(image("{" + entry("a", "F32", "[1]", 0, 4) + "}", 5), "appended to");
  refuses(image("{}", 1), "appended to");
  refuses(image("{" + entry("a", "U8", "[1]", 1, 2) + "}", 2), "leave a hole");
  refuses(image("{" + entry("a", "U8", "[0]", 0, 0) + "," + entry("b", "U8", "[2]", 1, 3) + "}", 3),
          "leave a hole");
  refuses(image("{" + entry("a", "U8", "[2]", 0, 2) + "," + entry("b", "U8", "[2]", 1, 3) + "}", 3),
          "overlap");
  refuses(image("{" + entry("a", "U8", "[1]", 1, 0) + "}", 1), "overlap or leave a hole");
  refuses(image("{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("a", "U8", "[1]", 1, 2) + "}", 2),
          "'a' appears twice");
  // 2^32 * 2^32 wraps to zero, and a zero beside it must not hide that.
  refuses(image("{" + entry("a", "U8", "[4294967296,4294967296]", 0, 0) + "}", 0), "impossible");
  refuses(image("{" + entry("a", "U8", "[0,4294967296,4294967296]", 0, 0) + "}", 0), "impossible");
}

void refuses_every_truncation() {
  const std::string file = image("{" + entry("a", "F32", "[2]", 0, 8) + "}", 8);
  for (size_t size = 0; size < file.size(); ++size) refuses(file.substr(0, size), "");
}

void write(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

void reads_shards(const fs::path& folder) {
  write(folder / "1.safetensors", image("{" + entry("a", "U8", "[1]", 0, 1) + "}", 1));
  write(folder / "2.safetensors", image("{" + entry("b", "U8", "[2]", 0, 2) + "}", 2));
  const auto index = [&](const std::string& map) {
    write(folder / "model.safetensors.index.json",
          R"({"metadata":{"n":[1.5]},"weight_map":)" + map + "}");
    return folder / "model.safetensors.index.json";
  };
  auto path = index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  for (const fs::path& name : {path, folder}) {
    const auto checkpoint = Checkpoint::open(name);
    check(checkpoint->tensors().size() == 2, "both shards are there");
    check(checkpoint->find("b")->data.size() == 2, "a tensor of the second shard");
  }
  const auto refuses_index = [&](const char* map, ErrorCode code, const char* words) {
    path = index(map);
    check_refused(code, words, [&] { Checkpoint::open(path); });
  };
  refuses_index(R"({"a":"2.safetensors"})", ErrorCode::kFormat, "'a' is not in its shard");
  refuses_index(R"({"a":"3.safetensors"})", ErrorCode::kIo, "3.safetensors");
  refuses_index(R"({"a":"1.safetensors","a":"1.safetensors"})", ErrorCode::kFormat, "twice");
  refuses_index(R"([])", ErrorCode::kFormat, "expected an object");
  for (const char* name :
       {"../1.safetensors", "/etc/passwd", "..", ".", "", "a\\\\b", "x\\u0000"}) {
    refuses_index((std::string(R"({"a":")") + name + "\"}").c_str(), ErrorCode::kFormat,
                  "not a file in its folder");
  }
  write(path, "{}");
  check_refused(ErrorCode::kFormat, "no weight_map", [&] { Checkpoint::open(path); });
}

void chooses_in_folders(const fs::path& folder) {
  const auto open = [&] { return Checkpoint::open(folder); };
  check_refused(ErrorCode::kIo, "no .safetensors", open);
  write(folder / "weights.safetensors", image("{}", 0));
  check(open()->tensors().empty(), "the only file");
  write(folder / "other.safetensors", image("{}", 0));
  check_refused(ErrorCode::kIo, "several .safetensors", open);
  write(folder / "model.safetensors", image("{" + entry("a", "U8", "[1]", 0, 1) + "}", 1));
  check(open()->tensors().size() == 1, "model.safetensors wins");
  check_refused(ErrorCode::kIo, "missing.safetensors",
                [&] { Checkpoint::open(folder / "missing.safetensors"); });
}

void outlives_replacement(const fs::path& folder) {
  const fs::path path = folder / "w.safetensors";
  write(path, image("{" + entry("a", "U8", "[3]", 0, 3) + "}", 3));
  const auto checkpoint = Checkpoint::open(path);
  write(folder / "new", image("{}", 0));
  std::error_code refused;  // by systems that keep the name of a mapped file
  fs::rename(folder / "new", path, refused);
  check(checkpoint->find("a")->data[2] == std::byte{2}, "a replaced file stays mapped");
}

// Whether the page at an address is in this process's memory now; false where the system does not
// tell.
bool resident(const std::byte* address) {
  std::ifstream maps("/proc/self/pagemap", std::ios::binary);
  uint64_t entry = 0;
  maps.seekg(static_cast<std::streamoff>(reinterpret_cast<uintptr_t>(address) / 4096 * 8));
  maps.read(reinterpret_cast<char*>(&entry), sizeof entry);
  return (entry >> 63) != 0;
}

void gives_memory_back(const fs::path& folder) {
  constexpr int kBytes = 1 << 20;
  write(folder / "w.safetensors", image("{" + entry("a", "U8", "[1048576]", 0, kBytes) + "," +
                                            entry("b", "U8", "[3]", kBytes, kBytes + 3) + "}",
                                        kBytes + 3));
  const auto checkpoint = Checkpoint::open(folder / "w.safetensors");
  const CheckpointTensor& a = *checkpoint->find("a");
  const std::byte* middle = a.data.data() + kBytes / 2;
  const std::byte before = *middle;
  const bool can_tell = resident(middle);
  checkpoint->leave(a);
  check(!can_tell || !resident(middle), "a tensor left takes no memory");
  check(*middle == before, "and is still there to be read");
  check(checkpoint->find("b")->data[2] == std::byte{2}, "its neighbour too");
}

// A folder of its own, removed at the end.
class Folder {
 public:
  explicit Folder(const char* name) : path_(fs::current_path() / name) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  reads_tensors();
  refuses_bad_headers();
  refuses_bad_data();
  refuses_every_truncation();
  reads_shards(Folder("safetensors_shards").path());
  chooses_in_folders(Folder("safetensors_folder").path());
  outlives_replacement(Folder("safetensors_replaced").path());
  gives_memory_back(Folder("safetensors_left").path());
  return exit_code();
}
