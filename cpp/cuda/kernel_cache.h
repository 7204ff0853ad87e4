// Compiled kernels on disk, by what they were compiled from (cache_folder.h). Whoever can write
// there decides what runs on the device.
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
  KernelCache();  // in cache_folder("cuda"); where that is empty, nothing is kept
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

}  // namespace npusim::cuda
