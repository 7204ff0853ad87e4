#include "cpp/metal/image.h"

namespace npusim::metal {
namespace {

constexpr size_t kMostLaunches = 1024;
constexpr int64_t kMostExtent = (int64_t{1} << 31) - 1, kMostThreads = 1024;
// Of every family.
constexpr LaunchLimits kMost = {{kMostExtent, kMostExtent, kMostExtent},
                                {kMostThreads, kMostThreads, kMostThreads},
                                kMostThreads,
                                64 << 10};
constexpr int64_t kMostGroups = int64_t{1} << 40;  // of a launch

class MetalImageReader final : ImageReader {
 public:
  MetalImageReader(std::span<const std::byte> bytes, const std::string& what)
      : ImageReader(bytes, kImageKind, what) {}

  Image read() {
    Image image;
    members({"arch", "launches"}, [&](const std::string& key) {
      if (key == "arch") {
        image.arch = text();
      } else if (key == "launches") {
        json().array([&] { launch(image); });
      } else if (key == "scratch") {
        image.scratch = number(kMostBytes, "scratch");
      } else if (key == "batch") {
        image.batch = number(kMostExtent, "batch");
      } else if (key == "failure") {
        image.failure = json().boolean();
      } else if (key == "library") {
        image.library = read_problem(json(), {LibraryName::kMps});
      } else if (key == "source") {
        image.source = blob();
      } else {
        json().skip();
      }
    });
    json().end();
    if (image.source.empty() && !image.launches.empty()) refuse("it holds no source");
    return image;
  }

 private:
  void launch(Image& image) {
    if (image.launches.size() == kMostLaunches) json().refuse("too many launches");
    ImageLaunch& launch = image.launches.emplace_back();
    ImageReader::launch(launch, kMost, [](const std::string&) { return false; });
    const int64_t plane = int64_t{launch.grid[0]} * launch.grid[1];
    if (plane > kMostGroups / launch.grid[2]) json().refuse("too many threadgroups");
  }
};

}  // namespace

Image parse_image(std::span<const std::byte> bytes, const std::string& what) {
  return MetalImageReader(bytes, what).read();
}

}  // namespace npusim::metal
