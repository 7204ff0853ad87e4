#include "cpp/device_code/image_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr size_t kMagicBytes = 8, kHeaderStart = kMagicBytes + 4;
constexpr size_t kMostText = 256;

bool is_image(std::span<const std::byte> bytes, const ImageKind& kind) {
  return bytes.size() >= kHeaderStart &&
         std::memcmp(bytes.data(), kind.magic.data(), kMagicBytes) == 0;
}

constexpr std::string_view kOfAllKinds = "NPU";
constexpr size_t kNameBytes = kMagicBytes - 1;  // a version follows

size_t header_size(std::span<const std::byte> bytes) {
  size_t size = 0;
  for (size_t i = 4; i-- > 0;) {
    size = size << 8 | std::to_integer<size_t>(bytes[kMagicBytes + i]);
  }
  return size;
}

}  // namespace

bool is_for_another_device(std::span<const std::byte> bytes, const ImageKind& kind) {
  return bytes.size() >= kHeaderStart &&
         std::memcmp(bytes.data(), kOfAllKinds.data(), kOfAllKinds.size()) == 0 &&
         std::memcmp(bytes.data(), kind.magic.data(), kNameBytes) != 0;
}

std::span<const std::byte> image_header(std::span<const std::byte> bytes, const ImageKind& kind) {
  if (!is_image(bytes, kind) || header_size(bytes) > bytes.size() - kHeaderStart) return {};
  return bytes.subspan(kHeaderStart, header_size(bytes));
}

ImageReader::ImageReader(std::span<const std::byte> bytes, const ImageKind& kind,
                         const std::string& what)
    : what_(what), json_(header(bytes, kind), what) {}

std::string_view ImageReader::header(std::span<const std::byte> bytes, const ImageKind& kind) {
  if (!is_image(bytes, kind)) refuse("its image is not one for " + std::string(kind.name));
  const size_t size = header_size(bytes);
  if (size > bytes.size() - kHeaderStart) refuse("the header passes the end of its image");
  blobs_ = bytes.subspan(kHeaderStart + size);
  return {reinterpret_cast<const char*>(bytes.data()) + kHeaderStart, size};
}

void ImageReader::refuse(const std::string& why) const {
  throw Error(ErrorCode::kFormat, what_ + ": " + why);
}

std::string ImageReader::text() {
  std::string text = json_.string();
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' '; });
  if (text.empty() || text.size() > kMostText || !plain) json_.refuse("not plain text");
  return text;
}

int64_t ImageReader::number(int64_t most, const char* name) {
  const int64_t value = json_.natural();
  if (value > most) {
    json_.refuse(std::string(name) + " is " + std::to_string(value) + ", more than " +
                 std::to_string(most));
  }
  return value;
}

void ImageReader::extent(unsigned (&to)[3], const int64_t (&most)[3], const char* name) {
  size_t count = 0;
  json_.array([&] {
    if (count == 3) json_.refuse(std::string(name) + " has more than 3 numbers");
    to[count] = static_cast<unsigned>(number(most[count], name));
    if (to[count++] == 0) json_.refuse(std::string(name) + " is 0 somewhere");
  });
  if (count != 3) json_.refuse(std::string(name) + " has fewer than 3 numbers");
}

std::span<const std::byte> ImageReader::blob() {
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

}  // namespace npusim
