// What a Metal device has to do: command buffers in the order in which they were committed, and
// waiting for them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "cpp/metal/metal.h"
#include "cpp/platform/forks.h"

namespace npusim::metal {

// Command buffers are numbered from 1 on as they are committed. Thread-safe.
class Queue {
 public:
  explicit Queue(MTL::Device& device);
  ~Queue();  // waits
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // A command buffer to encode into; it keeps alive what it uses. Throws Error(kDevice), in a
  // forked child always: what executes the work is the parent's.
  Owned<MTL::CommandBuffer> begin();
  // `kept` lives until the work has ended: what the buffer does not keep by itself.
  uint64_t commit(const Owned<MTL::CommandBuffer>& buffer,
                  std::vector<Owned<MTL::Resource>> kept = {});

  // Waits until all up to a number has ended, or all there is. They do not spin. In a forked child
  // they return at once.
  void wait(uint64_t number);
  void wait_all();
  // Whether all up to a number has ended.
  bool has_ended(uint64_t number);
  // Why the command buffer of that number failed; empty where it did not. For who has waited.
  std::string failure(uint64_t number);

 private:
  struct Running {
    uint64_t number;
    Owned<MTL::CommandBuffer> buffer;
    std::vector<Owned<MTL::Resource>> kept;
  };
  void drop_ended();
  bool is_forked() const noexcept { return fork_depth() != forks_; }

  const uint32_t forks_ = fork_depth();
  Owned<MTL::CommandQueue> queue_;
  ForkSafeMutex mutex_;  // of what follows; nobody waits for the device under it
  std::deque<Running> running_;
  std::map<uint64_t, std::string> failures_;  // the latest
  uint64_t committed_ = 0;
};

}  // namespace npusim::metal
