// One dispatch with what it takes, and encoding dispatches for one run.
#pragma once

#include <cstdint>
#include <span>

#include "cpp/metal/metal.h"

namespace npusim::metal {

inline constexpr size_t kMostArguments = 31;  // of Metal's table of buffers

struct Argument {
  const MTL::Buffer* buffer = nullptr;
  uint64_t serial = 0;  // of its storage: another buffer may come to lie at this address
  NS::UInteger offset = 0;
  bool operator==(const Argument&) const = default;
};

struct Launch {
  const MTL::ComputePipelineState* pipeline;
  MTL::Size grid, block;
  NS::UInteger shared;                       // bytes of threadgroup memory at index 0
  size_t first_argument = 0, arguments = 0;  // of its command
  bool barrier = false;                      // waits for all in front of it
};

// One concurrent encoder of a command buffer; it is told only what changes from launch to launch.
class Encoding {
 public:
  // Throws Error(kDevice).
  explicit Encoding(MTL::CommandBuffer& buffer);
  ~Encoding() { encoder_->endEncoding(); }
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  MTL::ComputeCommandEncoder& encoder() const noexcept { return *encoder_.get(); }
  void barrier() { encoder_->memoryBarrier(MTL::BarrierScopeBuffers); }
  // Without the barrier in front of it.
  void launch(const Launch& launch, std::span<const Argument> arguments);

 private:
  Owned<MTL::ComputeCommandEncoder> encoder_;
  Argument bound_[kMostArguments];
  const MTL::ComputePipelineState* pipeline_ = nullptr;
  NS::UInteger shared_ = 0;
};

}  // namespace npusim::metal
