// Tensors that a caller holds in memory, as a source of weights.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/runtime/watched_file.h"
#include "cpp/runtime/weights.h"

namespace npusim {

class HeldTensors final : public TensorSource {
 public:
  // `owner` keeps the memory of all tensors alive. Maps of files among it are watched.
  HeldTensors(std::vector<CheckpointTensor> tensors, std::shared_ptr<const void> owner);

  const CheckpointTensor* find(std::string_view name) const override;
  std::vector<std::string_view> names() const override;
  void check() const override;

 private:
  std::shared_ptr<const void> owner_;
  std::vector<std::unique_ptr<const WatchedFile>> files_;  // goes before the memory does
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

}  // namespace npusim
