// Memory of a CUDA device.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "cpp/cuda/context.h"
#include "cpp/runtime/device.h"

namespace npusim::cuda {

class CudaMemory final : public Memory {
 public:
  // 256-byte aligned, and for the context's stream: what is put there from now on finds it, zeroed
  // where asked for. Throws Error(kDevice) when the device has not that much.
  enum class Content { kZero, kAnything };
  CudaMemory(std::shared_ptr<const Context> context, int64_t bytes,
             Content content = Content::kZero);
  ~CudaMemory() override;
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  MemoryRange range() const noexcept override { return {0, address_, bytes_}; }
  std::byte* address() const noexcept { return reinterpret_cast<std::byte*>(address_); }
  void lend() noexcept override { lent_ = true; }

 private:
  std::shared_ptr<const Context> context_;
  DeviceAddress address_ = 0;
  int64_t bytes_;
  std::atomic<bool> lent_{false};
};

// Memory that other devices reach, where they reach its device: that of CudaMemory comes of a pool,
// which they do not.
class PeerMemory {
 public:
  // Throws Error(kDevice). The context must be current.
  PeerMemory(std::shared_ptr<const Context> context, size_t bytes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  DeviceAddress offset() const noexcept { return address_; }
  std::byte* address() const noexcept { return reinterpret_cast<std::byte*>(address_); }

 private:
  std::shared_ptr<const Context> context_;
  DeviceAddress address_ = 0;
};

// Pinned memory of the host: what the device copies from and to without the driver's help.
class PinnedMemory {
 public:
  // Throws Error(kDevice). The context must be current.
  PinnedMemory(std::shared_ptr<const Context> context, size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  std::shared_ptr<const Context> context_;
  void* data_ = nullptr;
};

// Pinned memory as memory of the device, which has the same address there.
class VisibleMemory final : public Memory {
 public:
  // Throws Error(kDevice). The context must be current.
  VisibleMemory(std::shared_ptr<const Context> context, int64_t bytes)
      : memory_(std::move(context), static_cast<size_t>(bytes)), bytes_(bytes) {}

  MemoryRange range() const noexcept override {
    return {0, reinterpret_cast<uintptr_t>(memory_.data()), bytes_};
  }
  std::byte* host() const noexcept override { return memory_.data(); }

 private:
  PinnedMemory memory_;
  int64_t bytes_;
};

}  // namespace npusim::cuda
