// What a command list does for its caller: binding, running, and saying what kernels met. How it is
// made stands in command_list_layout.cpp.
#include "cpp/metal/command_list.h"

#include <algorithm>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr size_t kMostUnsettled = 64;

}  // namespace

// One concurrent encoder of a command buffer; it is told only what changes from launch to launch.
class MetalCommandList::Encoding {
 public:
  explicit Encoding(MTL::CommandBuffer& buffer)
      : encoder_(NS::RetainPtr(buffer.computeCommandEncoder(MTL::DispatchTypeConcurrent))) {
    if (!encoder_) throw Error(ErrorCode::kDevice, "the Metal device gives no compute encoder");
  }
  ~Encoding() { encoder_->endEncoding(); }
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  void barrier() { encoder_->memoryBarrier(MTL::BarrierScopeBuffers); }
  void argument(size_t index, const Argument& argument) {
    if (bound_[index] == argument) return;
    bound_[index] = argument;
    encoder_->setBuffer(argument.buffer, argument.offset, index);
  }
  void launch(const Launch& launch) {
    if (pipeline_ != launch.pipeline) encoder_->setComputePipelineState(launch.pipeline);
    pipeline_ = launch.pipeline;
    if (launch.shared > 0 && launch.shared != shared_) {
      encoder_->setThreadgroupMemoryLength(launch.shared, 0);
      shared_ = launch.shared;
    }
    encoder_->dispatchThreadgroups(launch.grid, launch.block);
  }

 private:
  Owned<MTL::ComputeCommandEncoder> encoder_;
  Argument bound_[kMostArguments];
  const MTL::ComputePipelineState* pipeline_ = nullptr;
  NS::UInteger shared_ = 0;
};

MetalCommandList::~MetalCommandList() {
  if (!unsettled_.empty()) context_->queue().wait(unsettled_.back());
}

void MetalCommandList::bind(uint32_t buffer, const MemoryRange& at) {
  const Bound bound{at, storage_of(at).serial};
  if (bound_[buffer] == bound) return;
  if (reinterpret_cast<uintptr_t>(host_of(at)) % kOperandAlignment != 0) {
    throw Error(ErrorCode::kInput, "buffer " + std::to_string(buffer) + " (" +
                                       std::string(program_->buffers[buffer].name) +
                                       ") does not lie at a multiple of 16 bytes; copy it");
  }
  bound_[buffer] = bound;
  moved_ = true;
}

void MetalCommandList::submit() {
  enqueue(0);
  settle();
}

void MetalCommandList::enqueue(uintptr_t) {
  if (launches_.empty()) return;
  run(0, steps_.size());
}

// Encodes and commits commands, in order. Of a part, what others need may not be there (any more).
Owned<MTL::CommandBuffer> MetalCommandList::run(size_t first, size_t last) {
  const Pool pool;
  const bool whole = first == 0 && last == steps_.size();
  if (moved_ || !whole) place_arguments(first, last);
  if (moved_ && whole) place_barriers();
  moved_ = !whole;
  Owned<MTL::CommandBuffer> buffer = context_->queue().begin();
  {
    Encoding encoding(*buffer.get());
    for (size_t i = first; i < last; ++i) {
      const Step& step = steps_[i];
      if (step.barrier && i > first) encoding.barrier();
      for (size_t k = 0; k < step.arguments; ++k) {
        encoding.argument(k, arguments_[step.first_argument + k]);
      }
      for (size_t k = step.first_launch; k < step.last_launch; ++k) {
        if (k > step.first_launch) encoding.barrier();
        encoding.launch(launches_[k]);
      }
    }
  }
  note(context_->queue().commit(buffer));
  return buffer;
}

// What nobody asks about for long is asked about here, so that it does not pile up.
void MetalCommandList::note(uint64_t number) {
  for (const auto& [storage, writes] : used_) storage->use(number, writes);
  if (unsettled_.size() >= kMostUnsettled) {
    context_->queue().wait(unsettled_[unsettled_.size() / 2]);
    const auto ended = unsettled_.begin() + static_cast<ptrdiff_t>(unsettled_.size() / 2);
    unsettled_.erase(
        std::remove_if(unsettled_.begin(), ended,
                       [&](uint64_t one) { return context_->queue().failure(one).empty(); }),
        ended);
  }
  unsettled_.push_back(number);
}

void MetalCommandList::settle() {
  if (unsettled_.empty()) return;
  const std::vector<uint64_t> numbers = std::exchange(unsettled_, {});
  for (const uint64_t number : numbers) context_->finish(number);
  if (failures_ != nullptr) failing_.check(*program_, method_, failures_->host());
}

void MetalCommandList::submit_observed(const std::function<void(size_t)>& after) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    run(i, i + 1);
    settle();
    after(i);
  }
}

void MetalCommandList::submit_stepwise(const std::function<void(size_t)>& after) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    run(i, i + 1);
    after(i);
  }
  settle();
}

// By the device's clock: each command has a command buffer of its own.
void MetalCommandList::submit_timed(std::span<double> seconds) {
  std::vector<Owned<MTL::CommandBuffer>> buffers;
  for (size_t i = 0; i < steps_.size(); ++i) buffers.push_back(run(i, i + 1));
  settle();
  const Pool pool;
  for (size_t i = 0; i < steps_.size(); ++i) {
    seconds[i] = buffers[i]->GPUEndTime() - buffers[i]->GPUStartTime();
  }
}

}  // namespace npusim::metal
