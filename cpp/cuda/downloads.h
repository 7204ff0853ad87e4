// Copies to the host that nobody waits for until the bytes are wanted.
//
// They go to pinned memory, in a stream of their own: after the work that makes the bytes, beside
// the work that comes later. Pinned blocks are kept for the copies to come.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "cpp/cuda/context.h"
#include "cpp/cuda/memory.h"
#include "cpp/platform/forks.h"
#include "cpp/runtime/device.h"

namespace npusim::cuda {

class Downloads : public std::enable_shared_from_this<Downloads> {
 public:
  explicit Downloads(std::shared_ptr<const Context> context);
  ~Downloads();
  Downloads(const Downloads&) = delete;
  Downloads& operator=(const Downloads&) = delete;

  // See Device::start_download. Any thread may call. Throws Error(kDevice).
  std::unique_ptr<Download> start(std::shared_ptr<const Memory> from);

 private:
  class Copy;
  struct Block;
  using Blocks = std::multimap<size_t, std::unique_ptr<Block>>;  // by size
  Blocks::node_type take(size_t bytes);
  void give_back(Blocks::node_type block);

  std::shared_ptr<const Context> context_;
  ForkSafeMutex turn_;
  StreamHandle stream_ = nullptr;  // made by the first copy
  Blocks resting_;
};

}  // namespace npusim::cuda
