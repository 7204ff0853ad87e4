#include "cpp/cuda/image.h"

#include <charconv>
#include <cstring>

namespace npusim::cuda {
namespace {

constexpr size_t kMostLaunches = 1024, kMostOptions = 64;
// Of every architecture.
constexpr LaunchLimits kMost = {
    {(int64_t{1} << 31) - 1, 65535, 65535}, {1024, 1024, 64}, 1024, 227 << 10};
constexpr int64_t kMostOperands = 512;
constexpr size_t kMostMaps = 16;
constexpr int64_t kMostExtent = int64_t{1} << 31, kMostBox = 256;  // of a map

class CudaImageReader final : ImageReader {
 public:
  CudaImageReader(std::span<const std::byte> bytes, const std::string& what)
      : ImageReader(bytes, kImageKind, what) {}

  Image read() {
    Image image;
    members({"arch", "launches"}, [&](const std::string& key) {
      if (key == "arch") {
        image.arch = text();
      } else if (key == "launches") {
        json().array([&] { launch(image); });
      } else if (key == "operands") {
        image.operands = number(kMostOperands, "operands");
      } else if (key == "scratch") {
        image.scratch = number(kMostBytes, "scratch");
      } else if (key == "failure") {
        image.failure = json().boolean();
      } else if (key == "exchange") {
        image.exchange = json().boolean();
      } else if (key == "dependent") {
        image.dependent = json().boolean();
      } else if (key == "maps") {
        json().array([&] { map(image); });
      } else if (key == "library") {
        image.library = read_problem(json(), {LibraryName::kCublasLt, LibraryName::kCudnn});
      } else if (key == "cubin") {
        image.cubin = blob();
      } else if (key == "source") {
        image.source = blob();
      } else if (key == "options") {
        json().array([&] { image.options.push_back(text()); });
        if (image.options.size() > kMostOptions) json().refuse("too many options");
      } else {
        json().skip();
      }
    });
    json().end();
    const bool bare = image.cubin.empty() && image.source.empty();
    if (bare && !image.launches.empty()) refuse("it holds neither cubin nor source");
    if (!image.cubin.empty() && !is_cubin(image.cubin)) refuse("its cubin is damaged");
    return image;
  }

 private:
  void launch(Image& image) {
    if (image.launches.size() == kMostLaunches) json().refuse("too many launches");
    CudaLaunch& launch = image.launches.emplace_back();
    ImageReader::launch(launch, kMost, [&](const std::string& key) {
      if (key != "elsewhere") return false;
      launch.elsewhere = static_cast<unsigned>(number(kMost.shared, "elsewhere"));
      return true;
    });
  }

  void map(Image& image) {
    if (image.maps.size() == kMostMaps) json().refuse("too many maps");
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
        json().skip();
      }
    });
  }
};

template <typename Number>
Number field(std::span<const std::byte> bytes, size_t offset) {
  Number value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

Image parse_image(std::span<const std::byte> bytes, const std::string& what) {
  return CudaImageReader(bytes, what).read();
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
