// Memory of the host: aligned, zeroed, on huge pages where all of it will be used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/runtime/device.h"

namespace npusim::cpu {

class HostMemory final : public Memory {
 public:
  // Throws Error(kDevice) when the system has not that much.
  explicit HostMemory(int64_t bytes, bool huge_pages = true);
  ~HostMemory() override;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::byte* data() const noexcept override { return data_; }
  int64_t bytes() const noexcept override { return bytes_; }

 private:
  void* mapping_ = nullptr;  // what munmap gets; null for small blocks
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  int64_t bytes_;
};

}  // namespace npusim::cpu
