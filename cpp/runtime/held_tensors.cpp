#include "cpp/runtime/held_tensors.h"

#include <span>
#include <utility>

namespace npusim {

HeldTensors::HeldTensors(std::vector<CheckpointTensor> tensors, std::shared_ptr<const void> owner)
    : owner_(std::move(owner)) {
  for (CheckpointTensor& tensor : tensors) {
    std::string name = tensor.name;
    tensors_.insert_or_assign(std::move(name), std::move(tensor));
  }
  std::vector<std::span<const std::byte>> memory;
  for (const auto& [name, tensor] : tensors_) memory.push_back(tensor.data);
  files_ = watch_files_behind(memory);
}

const CheckpointTensor* HeldTensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string_view> HeldTensors::names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

void HeldTensors::check() const {
  for (const auto& file : files_) file->check();
}

}  // namespace npusim
