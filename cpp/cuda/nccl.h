// NCCL, NVIDIA's library of exchanges between devices, where it is found: it carries bytes between
// ranks whose devices do not reach each other's memory. It never adds: sums are the kernels', in
// the order of the ranks. Types and numbers are those of its public ABI, as far as npusim uses
// them. Multicast (NVLS) is switched off before it is loaded: a process that has used NCCL before
// keeps what it had then.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/cuda/context.h"
#include "cpp/platform/forks.h"

namespace npusim::cuda {

struct NcclEntries {
  using Status = int;
  using Communicator = struct ncclComm*;

  Status (*get_version)(int*);
  const char* (*get_error_string)(Status);
  Status (*init_all)(Communicator*, int count, const int* ordinals);
  Status (*destroy)(Communicator);
  Status (*abort)(Communicator);
  Status (*get_async_error)(Communicator, Status*);
  Status (*group_start)();
  Status (*group_end)();
  Status (*all_gather)(const void* from, void* to, size_t count, int type, Communicator,
                       StreamHandle);
};

// The ranks' devices in one NCCL group.
class Nccl {
 public:
  using Contexts = std::vector<std::shared_ptr<const Context>>;  // by rank

  // `folders` is where it may lie, besides the places of find_library. Throws Error(kDevice) that
  // says what is missing or what NCCL refused.
  Nccl(Contexts contexts, std::span<const std::string> folders);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // "2.28.3".
  std::string version_text() const;
  // Puts it on each rank's stream that at[rank], where its own `bytes` are in its place, has those
  // of all ranks, in their order. It is memory that peers reach. Throws Error(kDevice); behind a
  // failure nothing is carried any more.
  void all_gather(std::span<std::byte* const> at, size_t bytes);
  // Waits until all ranks' streams are done. Where one fails, the others stop waiting for it: which
  // one, and why, its next call of the driver says. Nothing is carried after it.
  void await();

 private:
  void check(NcclEntries::Status status, const std::string& what);
  void give_up() noexcept;
  bool pending();

  Contexts contexts_;
  NcclEntries entries_{};
  std::vector<NcclEntries::Communicator> communicators_;  // by rank; none after a failure
  int version_ = 0;
  ForkSafeMutex turn_;  // a failure ends what another thread may be about to use
};

}  // namespace npusim::cuda
