#include "cpp/cuda/kernel_cache.h"

#include <fstream>
#include <iterator>

#include "cpp/cuda/image.h"
#include "cpp/device_code/cache_folder.h"
#include "cpp/runtime/atomic_file.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {

KernelCache::KernelCache() : folder_(cache_folder("cuda")) {}

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

}  // namespace npusim::cuda
