// The primary context of one CUDA device, its properties, and the stream all of npusim's work runs
// on. Whatever lives on the device keeps its context alive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cpp/cuda/driver.h"
#include "cpp/platform/forks.h"

namespace npusim::cuda {

class Context {
 public:
  // Throws Error(kDevice): no driver, no such device, or one that refuses.
  explicit Context(int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  int ordinal() const noexcept { return ordinal_; }
  const std::string& name() const noexcept { return name_; }
  int major() const noexcept { return major_; }
  int minor() const noexcept { return minor_; }
  std::string arch() const { return "sm_" + std::to_string(major_) + std::to_string(minor_); }
  int most_shared_memory() const noexcept { return most_shared_memory_; }
  // Whether a launch may begin before the one in front has ended (programmatic dependent launch):
  // the device and the driver can do it, and NPUSIM_CUDA_DEPENDENT_LAUNCH is not 0.
  bool overlaps_dependent_launches() const noexcept { return overlaps_; }
  int64_t total_memory() const noexcept { return total_memory_; }
  StreamHandle stream() const noexcept { return stream_; }
  PoolHandle pool() const noexcept { return pool_; }  // null: the device has no pools

  // Whether kernels here may reach memory of another context: on the same device they may, and on
  // another one where that is possible, from this call on. The context need not be current.
  bool reaches(const Context& other) const;

  // Waits for the stream. Throws Error(kDevice) when something that ran there failed.
  void synchronize() const;
  // Has what is put on `after` from now on wait for all that `before` holds now; the host does not
  // wait. The context must be current.
  void order(StreamHandle before, StreamHandle after) const;

 private:
  friend class Current;
  int attribute(int attribute) const;
  void open_pool();

  const Driver& driver_;
  int ordinal_;
  DeviceHandle device_ = 0;
  ContextHandle handle_ = nullptr;
  std::string name_;
  int major_ = 0, minor_ = 0, most_shared_memory_ = 0;
  int64_t total_memory_ = 0;
  bool overlaps_ = false;
  StreamHandle stream_ = nullptr;
  mutable ForkSafeMutex ordering_;
  EventHandle passed_ = nullptr;  // recorded anew for each order
  PoolHandle pool_ = nullptr;
};

// Makes a context the calling thread's for as long as it lives, and restores the one before;
// nothing to do where it is the thread's already, as PyTorch leaves it. Where the driver refuses
// (it has shut down), the calls that follow say so.
class Current {
 public:
  explicit Current(const Context& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool entered_;
};

}  // namespace npusim::cuda
