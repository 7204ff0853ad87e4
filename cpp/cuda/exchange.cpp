#include "cpp/cuda/exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

// As kernels/cuda/ranks/exchange.h has them.
constexpr size_t kBlocks = 32, kFlagStride = 32, kLines = 256, kChunk = 128 << 10;
struct Link {
  uint32_t rank, ranks;
  uint64_t patience;  // nanoseconds
  uint32_t* epochs;
  uint32_t* stop;
  std::byte* lost;
  std::byte* mailboxes[Exchange::kMostRanks];
};

constexpr size_t kFlagBytes = sizeof(uint32_t) * kBlocks * Exchange::kMostRanks * kFlagStride;
constexpr size_t kLineBytes = 16 * 2 * kBlocks * Exchange::kMostRanks * kLines;
constexpr size_t kNumberBytes = kFlagBytes + kLineBytes;  // in which rounds are told by number
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kPatience = 10 * kSecond, kTrialPatience = 2 * kSecond;

size_t mailbox_bytes(size_t ranks) {
  return kNumberBytes + 2 * kBlocks * ranks * kChunk;
}

std::string name_of(const Contexts& contexts, size_t rank) {
  return "rank " + std::to_string(rank) + " (CUDA device " +
         std::to_string(contexts[rank]->ordinal()) + ")";
}

}  // namespace

// Of the host, where kernels tell what they met.
struct Exchange::Notes {
  // What a rank waited for in vain: 1 + the other rank, the block that waited, for which round, and
  // which it saw instead.
  struct alignas(16) Lost {
    uint32_t whom, block, round, seen;
  };
  Lost lost[kMostRanks];
  uint32_t stop;
};

Exchange::Exchange(Contexts contexts) : contexts_(std::move(contexts)) {
  std::set<int> ordinals;
  for (const auto& context : contexts_) ordinals.insert(context->ordinal());
  shares_ = ordinals.size() < contexts_.size();
  {
    const Current current(*contexts_.front());
    notes_ = std::make_unique<PinnedMemory>(contexts_.front(), sizeof(Notes));
  }
  for (const auto& context : contexts_) {
    links_.push_back(std::make_unique<CudaMemory>(context, static_cast<int64_t>(sizeof(Link))));
    epochs_.push_back(
        std::make_unique<CudaMemory>(context, static_cast<int64_t>(kBlocks * sizeof(uint32_t))));
  }
  find_way();
  place_mailboxes();
  fill_links(kTrialPatience);
}

Exchange::~Exchange() {
  for (size_t rank = 0; rank < mailboxes_.size(); ++rank) {
    const Current current(*contexts_[rank]);
    contexts_[rank]->driver().ctx_synchronize();
    contexts_[rank]->driver().mem_free(mailboxes_[rank]);
  }
}

void Exchange::find_way() {
  for (size_t from = 0; from < ranks(); ++from) {
    for (size_t to = 0; to < ranks(); ++to) {
      if (contexts_[from]->reaches(*contexts_[to])) continue;
      by_host_ = true;
      why_by_host_ = name_of(contexts_, from) + " has no peer access to " + name_of(contexts_, to);
      return;
    }
  }
}

void Exchange::place_mailboxes() {
  const size_t bytes = mailbox_bytes(ranks());
  for (const auto& context : contexts_) {
    const Current current(*context);
    if (by_host_) {
      host_.push_back(std::make_unique<PinnedMemory>(context, bytes));
      continue;
    }
    DeviceAddress address = 0;
    context->driver().check(context->driver().mem_alloc(&address, bytes),
                            "give memory for what ranks exchange");
    mailboxes_.push_back(address);
  }
}

// Waits: nothing may run meanwhile.
void Exchange::fill_links(uint64_t patience) {
  for (size_t rank = 0; rank < ranks(); ++rank) {
    const Context& context = *contexts_[rank];
    Link link{.rank = static_cast<uint32_t>(rank),
              .ranks = static_cast<uint32_t>(ranks()),
              .patience = patience,
              .epochs = reinterpret_cast<uint32_t*>(epochs_[rank]->address()),
              .stop = &notes().stop,
              .lost = reinterpret_cast<std::byte*>(&notes().lost[rank]),
              .mailboxes = {}};
    for (size_t to = 0; to < ranks(); ++to) {
      link.mailboxes[to] =
          by_host_ ? host_[to]->data() : reinterpret_cast<std::byte*>(mailboxes_[to]);
    }
    const Current current(context);
    const Driver& driver = context.driver();
    driver.check(
        driver.copy_to_device(links_[rank]->range().offset, &link, sizeof link, context.stream()),
        "copy to the device");
    context.synchronize();
  }
  reset();
}

// Every rank's rounds begin anew.
void Exchange::reset() {
  std::memset(notes_->data(), 0, sizeof(Notes));
  for (size_t rank = 0; rank < ranks(); ++rank) {
    const Context& context = *contexts_[rank];
    const Driver& driver = context.driver();
    const Current current(context);
    constexpr const char* kWhat = "clear memory of the device";
    driver.check(driver.memset_async(epochs_[rank]->range().offset, 0, kBlocks * sizeof(uint32_t),
                                     context.stream()),
                 kWhat);
    if (by_host_) {
      std::memset(host_[rank]->data(), 0, kNumberBytes);
    } else {
      driver.check(driver.memset_async(mailboxes_[rank], 0, kNumberBytes, context.stream()), kWhat);
    }
  }
  for (const auto& context : contexts_) {
    const Current current(*context);
    context->synchronize();
  }
}

Exchange::Notes& Exchange::notes() const {
  return *reinterpret_cast<Notes*>(notes_->data());
}

std::string Exchange::description() const {
  if (by_host_) {
    return "they exchange values through the host's memory, which is slow, since " + why_by_host_;
  }
  return shares_ ? "they share devices, for tests" : "they exchange values by peer access";
}

void Exchange::stop() noexcept {
  reinterpret_cast<volatile uint32_t&>(notes().stop) = 1;
}

std::string Exchange::lost() const {
  for (size_t rank = 0; rank < ranks(); ++rank) {
    const volatile Notes::Lost& lost = notes().lost[rank];
    const uint32_t whom = lost.whom;
    if (whom == 0) continue;
    return name_of(contexts_, rank) + " waited " +
           std::to_string((proved_ ? kPatience : kTrialPatience) / kSecond) + " s for " +
           name_of(contexts_, std::min<size_t>(whom, ranks()) - 1) +
           ", whose values did not come (block " + std::to_string(lost.block) + ": exchange " +
           std::to_string(lost.round) + ", after " + std::to_string(lost.seen) + rounds() + ")";
  }
  return "";
}

// How far each rank's blocks have come, which is as far as the others' where none missed a round.
std::string Exchange::rounds() const {
  std::string text;
  for (size_t rank = 0; rank < ranks(); ++rank) {
    std::array<uint32_t, kBlocks> of{};
    const Context& context = *contexts_[rank];
    const Current current(context);
    const Driver& driver = context.driver();
    const bool read = driver.copy_to_host(of.data(), epochs_[rank]->range().offset, sizeof of,
                                          context.stream()) == kSuccess &&
                      driver.stream_synchronize(context.stream()) == kSuccess;
    if (!read) continue;
    const auto [least, most] = std::minmax_element(of.begin(), of.end());
    text += "; rank " + std::to_string(rank) + " ended with " + std::to_string(of[0]) +
            " in block 0, " + std::to_string(*least) + " to " + std::to_string(*most) + " in all";
  }
  return text;
}

void Exchange::check() {
  const bool stopped = reinterpret_cast<const volatile uint32_t&>(notes().stop) != 0;
  if (!stopped) return;
  std::string why = lost();
  reset();
  if (why.empty()) why = "a rank could not be started";
  throw Error(ErrorCode::kDevice, why +
                                      ". The run has no results; states that it wrote are not to "
                                      "be relied on.");
}

void Exchange::prove(const Trial& trial) {
  if (proved_) return;
  std::string why = fault_of(trial);
  if (!why.empty() && !by_host_) {
    by_host_ = true;
    why_by_host_ = "the test of peer access failed: " + why;
    for (const auto& context : contexts_) {
      const Current current(*context);
      context->synchronize();
    }
    place_mailboxes();
    fill_links(kTrialPatience);
    why = fault_of(trial);
  }
  if (!why.empty()) {
    throw Error(ErrorCode::kDevice, "ranks cannot exchange values on these devices: " + why);
  }
  fill_links(kPatience);
  proved_ = true;
}

// A trial's memory. What ranks send is found again in what they get: an all_gather brings all of
// it, and of sums all summands but one are zeros.
class Exchange::TrialRun {
 public:
  TrialRun(const Exchange& exchange, const Trial& trial)
      : exchange_(exchange), trial_(trial), sent_(trial.bytes * (sums() ? 1 : ranks())) {
    for (const auto& context : exchange.contexts_) {
      for (auto* of : {&from_, &residual_}) {
        of->push_back(std::make_unique<CudaMemory>(context, static_cast<int64_t>(trial.bytes)));
      }
      to_.push_back(std::make_unique<CudaMemory>(context, static_cast<int64_t>(sent_.size())));
    }
  }

  // Small positive numbers in every dtype, another one at each place and each time.
  void fill(size_t time) {
    for (size_t i = 0; i < sent_.size(); ++i) {
      const uint32_t mixed = (static_cast<uint32_t>(i) + 1) * 2654435761U;
      sent_[i] = static_cast<std::byte>(0x30 | ((mixed >> 28) + time) % 15);
    }
    const std::vector<std::byte> zeros(sums() ? trial_.bytes : 0);
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const std::byte* own = sums() ? (rank == time % ranks() ? sent_.data() : zeros.data())
                                    : sent_.data() + rank * trial_.bytes;
      const Context& context = *exchange_.contexts_[rank];
      const Current current(context);
      context.driver().check(context.driver().copy_to_device(from_[rank]->range().offset, own,
                                                             trial_.bytes, context.stream()),
                             "copy to the device");
      context.synchronize();
    }
  }

  void start() const {
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const Context& context = *exchange_.contexts_[rank];
      const Current current(context);
      std::vector<std::byte*> arguments = {from_[rank]->address()};
      if (trial_.residual) arguments.push_back(residual_[rank]->address());
      arguments.push_back(to_[rank]->address());
      arguments.push_back(exchange_.link(rank));
      std::vector<void*> params;
      for (std::byte*& argument : arguments) params.push_back(&argument);
      const KernelLaunch& it = trial_.launches[rank];
      context.driver().check(
          context.driver().launch_kernel(it.function, it.grid[0], it.grid[1], it.grid[2],
                                         it.block[0], it.block[1], it.block[2], it.shared,
                                         context.stream(), params.data(), nullptr),
          "start a kernel");
    }
  }

  // The first rank that got other bytes; as many as there are when none did.
  size_t first_wrong() const {
    std::vector<std::byte> got(sent_.size());
    size_t wrong = ranks();
    for (size_t rank = ranks(); rank-- > 0;) {
      const Context& context = *exchange_.contexts_[rank];
      const Current current(context);
      context.synchronize();
      context.driver().check(context.driver().copy_to_host(got.data(), to_[rank]->range().offset,
                                                           got.size(), context.stream()),
                             "copy from the device");
      context.synchronize();
      if (got != sent_) wrong = rank;
    }
    return wrong;
  }

 private:
  bool sums() const { return trial_.sums; }
  size_t ranks() const { return exchange_.ranks(); }

  const Exchange& exchange_;
  const Trial& trial_;
  std::vector<std::byte> sent_;
  std::vector<std::unique_ptr<CudaMemory>> from_, residual_, to_;  // by rank
};

// Tried several times, so that both slots are used and flags of a replay are told from those
// before. Why it went wrong; empty if it did not.
std::string Exchange::fault_of(const Trial& trial) {
  TrialRun run(*this, trial);
  for (size_t time = 0; time < 2 * ranks() + 1; ++time) {
    run.fill(time);
    run.start();
    const size_t wrong = run.first_wrong();
    const std::string why = lost();
    if (!why.empty()) return why;
    if (wrong < ranks()) return name_of(contexts_, wrong) + " got other bytes than were sent";
  }
  return "";
}

}  // namespace npusim::cuda
