#include "cpp/metal/image.h"

namespace npusim::metal {
namespace {

constexpr size_t kMostLaunches = 1024;
// Of every family; what this device allows is checked against the device.
constexpr int64_t kMostExtent = (int64_t{1} << 31) - 1;
constexpr int64_t kMostGrid[3] = {kMostExtent, kMostExtent, kMostExtent};
constexpr int64_t kMostThreads = 1024, kMostShared = 64 << 10;
constexpr int64_t kMostBlock[3] = {kMostThreads, kMostThreads, kMostThreads};
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
      } else if (key == "failure") {
        image.failure = json().boolean();
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
      } else {
        json().skip();
      }
    });
    const int64_t threads = int64_t{launch.block[0]} * launch.block[1] * launch.block[2];
    if (threads > kMostThreads) {
      json().refuse("a block of " + std::to_string(threads) + " threads");
    }
    const int64_t plane = int64_t{launch.grid[0]} * launch.grid[1];
    if (plane > kMostGroups / launch.grid[2]) json().refuse("too many threadgroups");
  }
};

}  // namespace

Image parse_image(std::span<const std::byte> bytes, const std::string& what) {
  return MetalImageReader(bytes, what).read();
}

}  // namespace npusim::metal
