#include "cpp/cuda/image.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

#include "cpp/runtime/error.h"
#include "cpp/runtime/json.h"

namespace npusim::cuda {
namespace {

constexpr char kMagic[8] = {'N', 'P', 'U', 'C', 'U', 'D', 'A', '\x01'};
constexpr size_t kHeaderStart = sizeof kMagic + 4;
constexpr int64_t kMostBytes = int64_t{1} << 40;
constexpr size_t kMostLaunches = 1024, kMostOptions = 64, kMostText = 256;
// Of every architecture; what this device allows is checked against the device.
constexpr int64_t kMostGrid[3] = {(int64_t{1} << 31) - 1, 65535, 65535};
constexpr int64_t kMostBlock[3] = {1024, 1024, 64};
constexpr int64_t kMostOperands = 512;
constexpr size_t kMostMaps = 16;
constexpr int64_t kMostExtent = int64_t{1} << 31, kMostBox = 256;  // of a map
constexpr int64_t kMostThreads = 1024, kMostShared = 227 << 10;

bool is_image(std::span<const std::byte> bytes) {
  return bytes.size() >= kHeaderStart && std::memcmp(bytes.data(), kMagic, sizeof kMagic) == 0;
}

size_t header_size(std::span<const std::byte> bytes) {
  size_t size = 0;
  for (size_t i = 4; i-- > 0;) {
    size = size << 8 | std::to_integer<size_t>(bytes[sizeof kMagic + i]);
  }
  return size;
}

class ImageReader {
 public:
  ImageReader(std::span<const std::byte> bytes, const std::string& what)
      : what_(what), bytes_(bytes), json_(header(), what) {}

  Image read() {
    Image image;
    members({"arch", "launches"}, [&](const std::string& key) {
      if (key == "arch") {
        image.arch = text();
      } else if (key == "launches") {
        json_.array([&] { launch(image); });
      } else if (key == "operands") {
        image.operands = number(kMostOperands, "operands");
      } else if (key == "scratch") {
        image.scratch = number(kMostBytes, "scratch");
      } else if (key == "failure") {
        image.failure = json_.boolean();
      } else if (key == "dependent") {
        image.dependent = json_.boolean();
      } else if (key == "maps") {
        json_.array([&] { map(image); });
      } else if (key == "library") {
        image.library = read_problem(json_);
      } else if (key == "cubin") {
        image.cubin = blob();
      } else if (key == "source") {
        image.source = blob();
      } else if (key == "options") {
        json_.array([&] { image.options.push_back(text()); });
        if (image.options.size() > kMostOptions) json_.refuse("too many options");
      } else {
        json_.skip();
      }
    });
    json_.end();
    const bool bare = image.cubin.empty() && image.source.empty();
    if (bare && !image.launches.empty()) refuse("it holds neither cubin nor source");
    if (!image.cubin.empty() && !is_cubin(image.cubin)) refuse("its cubin is damaged");
    return image;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::kFormat, what_ + ": " + why);
  }

  std::string_view header() {
    if (!is_image(bytes_)) refuse("its image is not one for CUDA");
    const size_t size = header_size(bytes_);
    if (size > bytes_.size() - kHeaderStart) refuse("the header passes the end of its image");
    blobs_ = bytes_.subspan(kHeaderStart + size);
    return {reinterpret_cast<const char*>(bytes_.data()) + kHeaderStart, size};
  }

  // An object whose keys differ and include `needed`.
  template <typename Member>
  void members(std::initializer_list<const char*> needed, Member member) {
    std::set<std::string> seen;
    json_.object([&](const std::string& key) {
      if (!seen.insert(key).second) json_.refuse("the key " + key + " appears twice");
      member(key);
    });
    for (const char* key : needed) {
      if (!seen.contains(key)) json_.refuse("there is no " + std::string(key));
    }
  }

  std::string text() {
    std::string text = json_.string();
    const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' '; });
    if (text.empty() || text.size() > kMostText || !plain) json_.refuse("not plain text");
    return text;
  }

  int64_t number(int64_t most, const char* name) {
    const int64_t value = json_.natural();
    if (value > most) {
      json_.refuse(std::string(name) + " is " + std::to_string(value) + ", more than " +
                   std::to_string(most));
    }
    return value;
  }

  void extent(unsigned (&to)[3], const int64_t (&most)[3], const char* name) {
    size_t count = 0;
    json_.array([&] {
      if (count == 3) json_.refuse(std::string(name) + " has more than 3 numbers");
      to[count] = static_cast<unsigned>(number(most[count], name));
      if (to[count++] == 0) json_.refuse(std::string(name) + " is 0 somewhere");
    });
    if (count != 3) json_.refuse(std::string(name) + " has fewer than 3 numbers");
  }

  void launch(Image& image) {
    if (image.launches.size() == kMostLaunches) json_.refuse("too many launches");
    ImageLaunch& launch = image.launches.emplace_back();
    launch.shared = 0;
    members({"entry", "grid", "block"}, [&](const std::string& key) {
      if (key == "entry") {
        launch.entry = text();
      } else if (key == "grid") {
        extent(launch.grid, kMostGrid, "grid");
      } else if (key == "block") {
        extent(launch.block, kMostBlock, "block");
      } else if (key == "shared") {
        launch.shared = static_cast<unsigned>(number(kMostShared, "shared"));
      } else if (key == "elsewhere") {
        launch.elsewhere = static_cast<unsigned>(number(kMostShared, "elsewhere"));
      } else {
        json_.skip();
      }
    });
    const int64_t threads = int64_t{launch.block[0]} * launch.block[1] * launch.block[2];
    if (threads > kMostThreads) json_.refuse("a block of " + std::to_string(threads) + " threads");
  }

  void map(Image& image) {
    if (image.maps.size() == kMostMaps) json_.refuse("too many maps");
    Matrix& matrix = image.maps.emplace_back();
    members({"operand", "rows", "columns", "stride", "box"}, [&](const std::string& key) {
      if (key == "operand") {
        matrix.operand = number(kMostOperands, "operand");
      } else if (key == "rows") {
        matrix.rows = number(kMostExtent, "rows");
      } else if (key == "columns") {
        matrix.columns = number(kMostExtent, "columns");
      } else if (key == "stride") {
        matrix.stride = number(kMostBytes, "stride");
      } else if (key == "box") {
        matrix.box = number(kMostBox, "box");
      } else {
        json_.skip();
      }
    });
  }

  std::span<const std::byte> blob() {
    std::array<int64_t, 2> range{};
    size_t count = 0;
    json_.array([&] {
      if (count == 2) json_.refuse("expected [offset, size]");
      range[count++] = number(kMostBytes, "a blob");
    });
    if (count != 2) json_.refuse("expected [offset, size]");
    const auto size = static_cast<int64_t>(blobs_.size());
    if (range[0] > size || range[1] > size - range[0]) json_.refuse("a blob passes the end");
    return blobs_.subspan(static_cast<size_t>(range[0]), static_cast<size_t>(range[1]));
  }

  const std::string& what_;
  std::span<const std::byte> bytes_, blobs_;
  JsonReader json_;  // last: header() sets what is above
};

template <typename Number>
Number field(std::span<const std::byte> bytes, size_t offset) {
  Number value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

Image parse_image(std::span<const std::byte> bytes, const std::string& what) {
  return ImageReader(bytes, what).read();
}

std::span<const std::byte> image_header(std::span<const std::byte> bytes) {
  if (!is_image(bytes) || header_size(bytes) > bytes.size() - kHeaderStart) return {};
  return bytes.subspan(kHeaderStart, header_size(bytes));
}

bool runs_on(std::string_view arch, int major, int minor) {
  if (!arch.starts_with("sm_")) return false;
  const char *begin = arch.data() + 3, *end = arch.data() + arch.size();
  int number = 0;
  const auto [rest, failure] = std::from_chars(begin, end, number);
  if (failure != std::errc() || end - rest > 1) return false;
  if (rest != end) return number == major * 10 + minor;
  return number / 10 == major && number % 10 <= minor;
}

bool is_cubin(std::span<const std::byte> bytes) {
  constexpr size_t kElfHeader = 64;
  constexpr char kStart[5] = {'\x7f', 'E', 'L', 'F', 2};  // 64 bit
  constexpr uint16_t kMachineCuda = 190;
  if (bytes.size() < kElfHeader || std::memcmp(bytes.data(), kStart, sizeof kStart) != 0) {
    return false;
  }
  if (field<uint16_t>(bytes, 18) != kMachineCuda) return false;
  const auto inside = [&](uint64_t offset, uint64_t count, uint64_t size) {
    return offset <= bytes.size() && count * size <= bytes.size() - offset;
  };
  return inside(field<uint64_t>(bytes, 32), field<uint16_t>(bytes, 56),
                field<uint16_t>(bytes, 54)) &&
         inside(field<uint64_t>(bytes, 40), field<uint16_t>(bytes, 60), field<uint16_t>(bytes, 58));
}

}  // namespace npusim::cuda
