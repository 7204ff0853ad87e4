// What ranks on CUDA devices of one host exchange values through: a mailbox of each, which kernels
// of the others write to (kernels/cuda/ranks/exchange.h). Mailboxes lie in the ranks' own memory
// where peers reach that, and a test shows that they do. Where not, NCCL brings all ranks' values
// to each, and the kernels add them up; and where that is not there or fails its test, mailboxes
// lie in the host's memory. NPUSIM_CUDA_EXCHANGE (peers, nccl, host) asks for one of these ways
// alone.
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
#include "cpp/cuda/nccl.h"
#include "cpp/platform/forks.h"

namespace npusim::cuda {

using Contexts = std::vector<std::shared_ptr<const Context>>;  // by rank

class Exchange {
 public:
  static constexpr size_t kMostRanks = 8;  // of kernels/cuda/ranks/exchange.h

  // `folders`: where NCCL may lie. Throws Error(kDevice) where there is no way.
  Exchange(Contexts contexts, std::vector<std::string> folders);
  ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  size_t ranks() const noexcept { return contexts_.size(); }
  // Whether ranks share a device.
  bool shares() const noexcept { return shares_; }
  // What kernels of a method exchange by.
  struct Links {
    std::vector<std::unique_ptr<CudaMemory>> at;        // by rank: their last argument
    std::vector<std::unique_ptr<PeerMemory>> gathered;  // by rank; none where kernels exchange
  };
  // Those for exchanges of so many bytes of x on each rank at most.
  std::shared_ptr<const Links> links(size_t bytes);
  // Whether it is by NCCL: then bring() goes before each exchange's kernels, and await() before
  // waiting for ranks.
  bool by_nccl() const noexcept { return way_ == Way::kNccl; }
  // Puts it on all ranks' streams that `links` has all ranks' x.
  void bring(const Links& links, std::span<std::byte* const> x, size_t bytes);
  void await() {
    if (by_nccl()) nccl_->await();
  }
  // Held by who starts all ranks: they have to start the same work in the same order.
  ForkSafeMutex& starting() noexcept { return starting_; }
  // For people: how values go from rank to rank.
  std::string description() const;

  // One exchange to try: all_gather, or all_reduce where it `sums`.
  struct Trial {
    std::vector<KernelLaunch> launches;  // by rank
    size_t bytes = 0;                    // of x on each rank
    bool sums = false, residual = false;
  };
  // Runs an exchange over known bytes and looks at what each rank has got: if that is wrong,
  // the next way is taken, by `links` too. Only the first call does it. Throws Error(kDevice) where
  // no way works.
  void prove(const Trial& trial);

  // Has all ranks' kernels stop waiting, since one was not started.
  void stop() noexcept;
  // Throws Error(kDevice) where a rank waited in vain, naming both; the ranks may go on after it.
  // Nothing may run on any.
  void check();

 private:
  struct Notes;
  enum class Way { kPeers, kNccl, kHost };
  static std::vector<Way> asked_ways();
  static std::string name_of(Way way);
  void take_next_way();
  void give_up(const std::string& why);
  std::string prepare();
  std::string unreached() const;
  void place_mailboxes();
  std::shared_ptr<Links> make_links() const;
  void reserve_gathered();
  void fill_links();
  void reset();
  class TrialRun;
  std::string fault_of(const Trial& trial);
  uint64_t patience() const noexcept;
  Notes& notes() const;
  std::string lost() const;
  std::string rounds() const;

  Contexts contexts_;
  std::vector<std::string> folders_;
  bool shares_ = false, proved_ = false;
  Way way_ = Way::kPeers;
  std::vector<Way> ways_;  // after it
  std::string why_not_;    // why there is no faster one
  std::unique_ptr<Nccl> nccl_;
  ForkSafeMutex starting_;
  size_t most_ = 0;                                     // bytes of x that were asked for
  std::shared_ptr<Links> links_;                        // for as many
  std::vector<std::unique_ptr<CudaMemory>> epochs_;     // by rank
  std::vector<std::unique_ptr<PeerMemory>> mailboxes_;  // empty where they are the host's
  std::vector<std::unique_ptr<PinnedMemory>> host_;     // those, or none
  std::unique_ptr<PinnedMemory> notes_;
};

// A rank's place in an exchange; of a program of one rank there is none.
struct Seat {
  std::shared_ptr<const Exchange> exchange = nullptr;
  size_t rank = 0;
  std::shared_ptr<const Exchange::Links> links = nullptr;
};

}  // namespace npusim::cuda
