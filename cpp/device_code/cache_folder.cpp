#include "cpp/device_code/cache_folder.h"

#include <cstdint>
#include <cstdlib>

namespace npusim {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// FNV-1a; `seed` makes hashes that do not collide together.
uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t value = seed;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return value;
}

std::string hex(uint64_t value) {
  std::string digits(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  return digits;
}

}  // namespace

std::filesystem::path cache_folder(std::string_view device) {
  if (const std::string own = environment("NPUSIM_CACHE_DIR"); !own.empty()) {
    return std::filesystem::path(own) / device;
  }
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) {
    return std::filesystem::path(xdg) / "npusim" / device;
  }
  const std::string home = environment("HOME");
  return home.empty() ? std::filesystem::path()
                      : std::filesystem::path(home) / ".cache" / "npusim" / device;
}

std::string cache_key(std::span<const std::string> parts) {
  std::string all;
  for (const std::string& part : parts) all += std::to_string(part.size()) + ":" + part;
  const uint64_t first = hash(all, 0xCBF29CE484222325u);
  return hex(first) + hex(hash(all, first ^ 0x9E3779B97F4A7C15u));
}

}  // namespace npusim
