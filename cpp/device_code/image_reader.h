// What the device code of all targets has in common in a .npubin (docs/npubin.md, "CUDA images",
// "Metal images"): 8 bytes that name the kind, a JSON header, and the blobs that it points to.
//
// An image is hostile until its reader has parsed it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "cpp/runtime/json.h"

namespace npusim {

// The first bytes of an image, and who runs it, for messages: "CUDA".
struct ImageKind {
  std::string_view magic;  // 8 bytes
  std::string_view name;
};

// Whether `bytes` are an image, and one of another kind of whatever version: whole code that
// another device runs, not a damaged image.
bool is_for_another_device(std::span<const std::byte> bytes, const ImageKind& kind);

// The header of an image, as it stands there; empty where `bytes` are no image of the kind.
std::span<const std::byte> image_header(std::span<const std::byte> bytes, const ImageKind& kind);

// A launch of an entry: how many blocks (threadgroups), and threads of one.
struct ImageLaunch {
  std::string entry;
  unsigned grid[3] = {};
  unsigned block[3] = {};
  unsigned shared = 0;  // dynamic shared (threadgroup) memory of a block, in bytes
};
// What no device goes beyond; what a device allows is checked against it.
struct LaunchLimits {
  int64_t grid[3], block[3];
  int64_t threads;  // of a block
  int64_t shared;
};

// Reads the values of a header. All calls throw Error(kFormat), beginning with `what`.
class ImageReader {
 public:
  static constexpr int64_t kMostBytes = int64_t{1} << 40;  // of memory, and of blobs

  ImageReader(std::span<const std::byte> bytes, const ImageKind& kind, const std::string& what);

  // An object whose keys differ and include `needed`; `member` takes the value of a key.
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
  std::string text();  // plain, not empty, of at most 256 bytes
  int64_t number(int64_t most, const char* name);
  // Three numbers, each from 1 to `most`.
  void extent(unsigned (&to)[3], const int64_t (&most)[3], const char* name);
  // A launch; `other` takes the value of a key that not all targets have, and says whether it did.
  template <typename Other>
  void launch(ImageLaunch& to, const LaunchLimits& most, Other other) {
    members({"entry", "grid", "block"}, [&](const std::string& key) {
      if (key == "entry") {
        to.entry = text();
      } else if (key == "grid") {
        extent(to.grid, most.grid, "grid");
      } else if (key == "block") {
        extent(to.block, most.block, "block");
      } else if (key == "shared") {
        to.shared = static_cast<unsigned>(number(most.shared, "shared"));
      } else if (!other(key)) {
        json_.skip();
      }
    });
    const int64_t threads = int64_t{to.block[0]} * to.block[1] * to.block[2];
    if (threads > most.threads) {
      json_.refuse("a block of " + std::to_string(threads) + " threads");
    }
  }
  std::span<const std::byte> blob();  // [offset, size]

  JsonReader& json() noexcept { return json_; }
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  std::string_view header(std::span<const std::byte> bytes, const ImageKind& kind);

  const std::string& what_;
  std::span<const std::byte> blobs_;
  JsonReader json_;  // last: header() sets what is above
};

}  // namespace npusim
