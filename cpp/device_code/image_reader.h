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

// The header of an image, as it stands there; empty where `bytes` are no image of the kind.
std::span<const std::byte> image_header(std::span<const std::byte> bytes, const ImageKind& kind);

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
