#include "cpp/metal/queue.h"

#include <mutex>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr size_t kKeptFailures = 256;

bool is_over(const MTL::CommandBuffer& buffer) {
  const MTL::CommandBufferStatus status = buffer.status();
  return status == MTL::CommandBufferStatusCompleted || status == MTL::CommandBufferStatusError;
}

}  // namespace

Queue::Queue(MTL::Device& device) {
  const Pool pool;
  queue_ = NS::TransferPtr(device.newCommandQueue());
  if (!queue_) throw Error(ErrorCode::kDevice, "the Metal device gives no command queue");
}

// A forked child leaves the parent's queue alone.
Queue::~Queue() {
  wait_all();
  if (is_forked()) queue_.detach();
}

Owned<MTL::CommandBuffer> Queue::begin() {
  if (is_forked()) {
    throw Error(
        ErrorCode::kDevice,
        "the Metal device was opened before this process forked, and is its parent's; start "
        "processes by spawn (multiprocessing.set_start_method('spawn'))");
  }
  const Pool pool;
  Owned<MTL::CommandBuffer> buffer = NS::RetainPtr(queue_->commandBuffer());
  if (!buffer) throw Error(ErrorCode::kDevice, "the Metal device gives no command buffer");
  return buffer;
}

uint64_t Queue::commit(const Owned<MTL::CommandBuffer>& buffer,
                       std::vector<Owned<MTL::Resource>> kept) {
  const Pool pool;
  const std::lock_guard<ForkSafeMutex> locked(mutex_);
  drop_ended();
  buffer->commit();
  running_.push_back({++committed_, buffer, std::move(kept)});
  return committed_;
}

// Takes those from the front that have ended, and notes why they failed.
void Queue::drop_ended() {
  while (!running_.empty() && is_over(*running_.front().buffer.get())) {
    const Running& ended = running_.front();
    if (ended.buffer->status() == MTL::CommandBufferStatusError) {
      failures_[ended.number] = text_of(ended.buffer->error());
      if (failures_.size() > kKeptFailures) failures_.erase(failures_.begin());
    }
    running_.pop_front();
  }
}

void Queue::wait(uint64_t number) {
  if (is_forked()) return;
  const Pool pool;
  for (;;) {
    Owned<MTL::CommandBuffer> first;
    {
      const std::lock_guard<ForkSafeMutex> locked(mutex_);
      drop_ended();
      if (running_.empty() || running_.front().number > number) return;
      first = running_.front().buffer;
    }
    first->waitUntilCompleted();
  }
}

void Queue::wait_all() {
  uint64_t latest = 0;
  {
    const std::lock_guard<ForkSafeMutex> locked(mutex_);
    latest = committed_;
  }
  wait(latest);
}

bool Queue::has_ended(uint64_t number) {
  const Pool pool;
  const std::lock_guard<ForkSafeMutex> locked(mutex_);
  drop_ended();
  return running_.empty() || running_.front().number > number;
}

std::string Queue::failure(uint64_t number) {
  const std::lock_guard<ForkSafeMutex> locked(mutex_);
  const auto found = failures_.find(number);
  return found == failures_.end() ? "" : found->second;
}

}  // namespace npusim::metal
