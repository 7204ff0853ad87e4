// What ranks on CUDA devices of one host exchange values through: a mailbox of each, which kernels
// of the others write to (kernels/cuda/ranks/exchange.h). Mailboxes lie in the ranks' own memory
// where peers reach that, and a test shows that they do; else in the host's.
//
// Ranks may share a device, for tests: then what follows an exchange in a graph does not start
// before its end, as it would take the room that the other ranks' work needs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/cuda/context.h"
#include "cpp/cuda/graph.h"
#include "cpp/cuda/memory.h"

namespace npusim::cuda {

using Contexts = std::vector<std::shared_ptr<const Context>>;  // by rank

class Exchange {
 public:
  static constexpr size_t kMostRanks = 8;  // of kernels/cuda/ranks/exchange.h

  // Throws Error(kDevice).
  explicit Exchange(Contexts contexts);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  size_t ranks() const noexcept { return contexts_.size(); }
  // Whether ranks share a device.
  bool shares() const noexcept { return shares_; }
  // The last argument of a rank's kernels that exchange.
  std::byte* link(size_t rank) const { return links_[rank]->address(); }
  // For people: how values go from rank to rank.
  std::string description() const;

  // One exchange to try: all_gather, or all_reduce where it `sums`.
  struct Trial {
    std::vector<KernelLaunch> launches;  // by rank
    size_t bytes = 0;                    // of x on each rank
    bool sums = false, residual = false;
  };
  // Runs an exchange over known bytes and looks at what each rank has got: if that is wrong,
  // mailboxes move to the host. Only the first call does it. Throws Error(kDevice) where nothing
  // works.
  void prove(const Trial& trial);

  // Has all ranks' kernels stop waiting, since one was not started.
  void stop() noexcept;
  // Throws Error(kDevice) where a rank waited in vain, naming both; the ranks may go on after it.
  // Nothing may run on any.
  void check();

 private:
  struct Notes;
  void find_way();
  void place_mailboxes();
  void fill_links(uint64_t patience);
  void reset();
  class TrialRun;
  std::string fault_of(const Trial& trial);
  Notes& notes() const;
  std::string lost() const;
  std::string rounds() const;

  Contexts contexts_;
  bool shares_ = false, by_host_ = false, proved_ = false;
  std::string why_by_host_;
  std::vector<std::unique_ptr<CudaMemory>> links_, epochs_;  // by rank
  // Of cuMemAlloc, as pools' memory is not the peers'.
  std::vector<DeviceAddress> mailboxes_;             // empty where they are the host's
  std::vector<std::unique_ptr<PinnedMemory>> host_;  // those, or none
  std::unique_ptr<PinnedMemory> notes_;
};

// A rank's place in an exchange; of a program of one rank there is none.
struct Seat {
  std::shared_ptr<const Exchange> exchange = nullptr;
  size_t rank = 0;
};

}  // namespace npusim::cuda
