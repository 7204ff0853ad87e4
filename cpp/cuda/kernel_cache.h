// Compiled kernels on disk, by what they were compiled from: $NPUSIM_CACHE_DIR, or npusim in
// $XDG_CACHE_HOME or ~/.cache. Whoever can write there decides what runs on the device.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace npusim::cuda {

class KernelCache {
 public:
  KernelCache();  // in the folder that the environment names; empty: nothing is kept
  explicit KernelCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // The code stored under a key; nothing when there is none, or it is damaged.
  std::optional<std::vector<std::byte>> find(const std::string& key) const;
  // Stores code; does nothing where the folder cannot be written.
  void store(const std::string& key, std::span<const std::byte> code) const;

  const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  std::filesystem::path file(const std::string& key) const;

  std::filesystem::path folder_;
};

// A key made of all parts: 32 hexadecimal digits.
std::string cache_key(std::span<const std::string> parts);

}  // namespace npusim::cuda
