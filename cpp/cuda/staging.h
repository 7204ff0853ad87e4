// Copies between pageable memory of the host and the device, through pinned buffers.
//
// A large copy goes in chunks over several lanes: while the device takes one chunk of a lane, a
// thread fills the other, so that reading a mapped file, copying and the bus overlap.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "cpp/cuda/context.h"
#include "cpp/cuda/memory.h"
#include "cpp/platform/forks.h"
#include "cpp/runtime/device.h"

namespace npusim::cuda {

class Staging {
 public:
  explicit Staging(std::shared_ptr<const Context> context);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // An upload returns when `from` may change, a download when the bytes have arrived; both are
  // after all work that the stream held before. Any thread may call. Throw Error(kDevice).
  void upload(DeviceAddress to, std::span<const std::byte> from);
  void download(std::span<std::byte> to, DeviceAddress from);
  // As upload for each, in order: what fits together goes through one buffer.
  void upload_all(std::span<const Upload> uploads);

 private:
  class Lane;
  struct Copy;
  void run(Copy& copy);

  Lane& lane(size_t index);
  void upload_together(std::span<const Upload> uploads);

  std::shared_ptr<const Context> context_;
  const size_t most_lanes_;
  ForkSafeMutex turn_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // opened as copies need them
};

}  // namespace npusim::cuda
