// What runs ask of weights that are loaded; how they become so is in weights_loading.cpp.
#include "cpp/runtime/weights.h"

#include <string>

#include "cpp/platform/file_faults.h"
#include "cpp/platform/process.h"
#include "cpp/runtime/error.h"

namespace npusim {

std::optional<MemoryRange> Weights::range(uint32_t index) const {
  if (index >= tensors_.size()) {
    throw Error(ErrorCode::kInput, "the program has no buffer " + std::to_string(index));
  }
  const Buffer& buffer = program_->buffers[index];
  if (buffer.kind == BufferKind::kPersistent) {
    return persistent_->range().part(buffer.offset, buffer.bytes);
  }
  if (tensors_[index] == nullptr) return std::nullopt;
  return tensors_[index]->range();
}

void Weights::lend() const noexcept {
  persistent_->lend();
  for (const std::shared_ptr<Memory>& tensor : tensors_) {
    if (tensor != nullptr) tensor->lend();
  }
}

void Weights::check_source() const {
  constexpr int64_t kBetweenLooks = 1000;
  if (platform::any_file_fault() ||
      platform::coarse_milliseconds() - looked_.load() >= kBetweenLooks)
    check_now();
}

void Weights::check_now() const {
  if (source_ == nullptr) return;
  looked_.store(platform::coarse_milliseconds());
  source_->check();
}

}  // namespace npusim
