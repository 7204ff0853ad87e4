// One Metal device, what it can do, and its queue. Whatever lives on the device keeps this alive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cpp/metal/metal.h"
#include "cpp/metal/queue.h"

namespace npusim::metal {

// Whether methods go into indirect command buffers. kAuto: on GPU families from Apple9 on. There
// are reports that drivers of older ones, which compute with them all the same, lose pipelines that
// only indirect commands name.
enum class IndirectUse : uint8_t { kAuto, kOn, kOff };

class Context {
 public:
  // Throws Error(kDevice): there is no such device.
  Context(int64_t ordinal, IndirectUse indirect);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  MTL::Device& device() const noexcept { return *device_.get(); }
  Queue& queue() const noexcept { return queue_; }
  int ordinal() const noexcept { return ordinal_; }
  const std::string& name() const noexcept { return name_; }
  // The newest of Apple's GPU families that it belongs to, such as 8; 0: it is no GPU of Apple's.
  int family() const noexcept { return family_; }
  std::string arch() const { return "apple" + std::to_string(family_); }
  // Whether code made for an architecture ("apple7") runs here: the same family or an older one.
  bool runs(std::string_view arch) const noexcept;
  bool indirect() const noexcept { return indirect_; }
  bool has_mps() const noexcept { return has_mps_; }
  int64_t most_threadgroup_memory() const noexcept { return most_threadgroup_memory_; }
  int64_t total_memory() const noexcept { return total_memory_; }  // that it should use at most

  // Waits for the work of a number. Throws Error(kDevice) where that failed.
  void finish(uint64_t number) const;

 private:
  Owned<MTL::Device> device_;
  mutable Queue queue_;
  int ordinal_;
  std::string name_;
  int family_ = 0;
  bool indirect_ = false, has_mps_ = false;
  int64_t most_threadgroup_memory_ = 0, total_memory_ = 0;
};

}  // namespace npusim::metal
