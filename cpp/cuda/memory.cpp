#include "cpp/cuda/memory.h"

#include <algorithm>
#include <string>

#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr size_t kGranule = 256;

[[noreturn]] void refuse(const Context& context, int64_t bytes, Result result) {
  const Driver& driver = context.driver();
  std::string text = "CUDA device " + std::to_string(context.ordinal()) + " has no " +
                     std::to_string(bytes) + " bytes to give";
  size_t free = 0, total = 0;
  if (result != kOutOfMemory) {
    text += ": " + driver.error_text(result);
  } else if (driver.mem_get_info(&free, &total) == kSuccess) {
    text += ": " + std::to_string(free) + " of " + std::to_string(total) + " are free";
  }
  throw Error(ErrorCode::kDevice, text);
}

}  // namespace

CudaMemory::CudaMemory(std::shared_ptr<const Context> context, int64_t bytes, Content content)
    : context_(std::move(context)), bytes_(bytes) {
  const Driver& driver = context_->driver();
  const Current current(*context_);
  const StreamHandle stream = context_->stream();
  const size_t size =
      (std::max<size_t>(static_cast<size_t>(bytes), 1) + kGranule - 1) / kGranule * kGranule;
  const Result result = context_->pool() == nullptr
                            ? driver.mem_alloc(&address_, size)
                            : driver.mem_alloc_from_pool(&address_, size, context_->pool(), stream);
  if (result != kSuccess) refuse(*context_, bytes, result);
  if (content == Content::kAnything) return;
  const Result cleared = driver.memset_async(address_, 0, size, stream);
  if (cleared != kSuccess) {
    driver.mem_free(address_);
    driver.check(cleared, "clear memory of the device");
  }
}

// What was lent may still be read by work that others have queued elsewhere.
CudaMemory::~CudaMemory() {
  const Driver& driver = context_->driver();
  const Current current(*context_);
  if (lent_) driver.ctx_synchronize();
  if (context_->pool() == nullptr) {
    driver.mem_free(address_);
  } else {
    driver.mem_free_async(address_, context_->stream());
  }
}

PeerMemory::PeerMemory(std::shared_ptr<const Context> context, size_t bytes)
    : context_(std::move(context)) {
  const Driver& driver = context_->driver();
  driver.check(driver.mem_alloc(&address_, bytes), "give memory for what ranks exchange");
}

PeerMemory::~PeerMemory() {
  const Current current(*context_);
  context_->driver().ctx_synchronize();
  context_->driver().mem_free(address_);
}

PinnedMemory::PinnedMemory(std::shared_ptr<const Context> context, size_t bytes)
    : context_(std::move(context)) {
  const Driver& driver = context_->driver();
  driver.check(driver.mem_host_alloc(&data_, bytes, 0), "pin memory of the host");
}

PinnedMemory::~PinnedMemory() {
  const Current current(*context_);
  context_->driver().mem_free_host(data_);
}

}  // namespace npusim::cuda
