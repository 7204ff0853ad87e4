#include "cpp/cuda/kernel_cache.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "cpp/cuda/image.h"
#include "cpp/runtime/atomic_file.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::filesystem::path cache_folder() {
  if (const std::string own = environment("NPUSIM_CACHE_DIR"); !own.empty()) {
    return std::filesystem::path(own) / "cuda";
  }
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) {
    return std::filesystem::path(xdg) / "npusim" / "cuda";
  }
  const std::string home = environment("HOME");
  return home.empty() ? std::filesystem::path()
                      : std::filesystem::path(home) / ".cache" / "npusim" / "cuda";
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

KernelCache::KernelCache() : folder_(cache_folder()) {}

std::filesystem::path KernelCache::file(const std::string& key) const {
  return folder_ / (key + ".cubin");
}

std::optional<std::vector<std::byte>> KernelCache::find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream stream(file(key), std::ios::binary);
  if (!stream) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const auto bytes = std::as_bytes(std::span(text));
  if (!is_cubin(bytes)) return std::nullopt;
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

void KernelCache::store(const std::string& key, std::span<const std::byte> code) const {
  if (folder_.empty()) return;
  std::error_code failure;
  std::filesystem::create_directories(folder_, failure);
  if (failure) return;
  try {
    AtomicFile file(this->file(key));
    file.write(code);
    file.commit();
  } catch (const Error&) {
    // A full or read-only disk costs the next process a compilation, nothing more.
  }
}

std::string cache_key(std::span<const std::string> parts) {
  std::string all;
  for (const std::string& part : parts) all += std::to_string(part.size()) + ":" + part;
  const uint64_t first = hash(all, 0xCBF29CE484222325u);
  return hex(first) + hex(hash(all, first ^ 0x9E3779B97F4A7C15u));
}

}  // namespace npusim::cuda
