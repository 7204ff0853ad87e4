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

  MemoryRange range() const noexcept override {
    return {0, reinterpret_cast<uintptr_t>(data_), bytes_};
  }
  std::byte* host() const noexcept override { return data_; }

 private:
  void* pages_ = nullptr;  // what data_ lies in; null for small blocks
  size_t pages_bytes_ = 0;
  std::byte* data_ = nullptr;
  int64_t bytes_;
};

}  // namespace npusim::cpu
