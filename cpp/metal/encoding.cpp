#include "cpp/metal/encoding.h"

#include "cpp/runtime/error.h"

namespace npusim::metal {

Encoding::Encoding(MTL::CommandBuffer& buffer)
    : encoder_(NS::RetainPtr(buffer.computeCommandEncoder(MTL::DispatchTypeConcurrent))) {
  if (!encoder_) throw Error(ErrorCode::kDevice, "the Metal device gives no compute encoder");
}

void Encoding::launch(const Launch& launch, std::span<const Argument> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (bound_[i] == arguments[i]) continue;
    bound_[i] = arguments[i];
    encoder_->setBuffer(arguments[i].buffer, arguments[i].offset, i);
  }
  if (pipeline_ != launch.pipeline) encoder_->setComputePipelineState(launch.pipeline);
  pipeline_ = launch.pipeline;
  if (launch.shared > 0 && launch.shared != shared_) {
    encoder_->setThreadgroupMemoryLength(launch.shared, 0);
    shared_ = launch.shared;
  }
  encoder_->dispatchThreadgroups(launch.grid, launch.block);
}

}  // namespace npusim::metal
