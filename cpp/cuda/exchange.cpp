#include "cpp/cuda/exchange.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

// As kernels/cuda/ranks/exchange.h has them.
constexpr size_t kBlocks = 32, kFlagStride = 32, kChunk = 16384;
struct Link {
  uint32_t rank, ranks;
  uint64_t patience;  // nanoseconds
  uint32_t* epochs;
  uint32_t* stop;
  uint32_t* lost;
  std::byte* mailboxes[Exchange::kMostRanks];
};

constexpr size_t kFlagBytes = sizeof(uint32_t) * kBlocks * Exchange::kMostRanks * kFlagStride;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kPatience = 10 * kSecond, kTrialPatience = 2 * kSecond;

size_t mailbox_bytes(size_t ranks) {
  return kFlagBytes + 2 * kBlocks * ranks * kChunk;
}

std::string name_of(const Contexts& contexts, size_t rank) {
  return "rank " + std::to_string(rank) + " (CUDA device " +
         std::to_string(contexts[rank]->ordinal()) + ")";
}

}  // namespace

// Of the host, where kernels tell what they met.
struct Exchange::Notes {
  uint32_t stop;
  uint32_t lost[kMostRanks];
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
              .lost = &notes().lost[rank],
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
      std::memset(host_[rank]->data(), 0, kFlagBytes);
    } else {
      driver.check(driver.memset_async(mailboxes_[rank], 0, kFlagBytes, context.stream()), kWhat);
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
    const uint32_t whom = reinterpret_cast<const volatile uint32_t&>(notes().lost[rank]);
    if (whom == 0) continue;
    return name_of(contexts_, rank) + " waited " +
           std::to_string((proved_ ? kPatience : kTrialPatience) / kSecond) + " s for " +
           name_of(contexts_, std::min<size_t>(whom, ranks()) - 1) + ", whose values did not come";
  }
  return "";
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

void Exchange::prove(std::span<const KernelLaunch> launches, int64_t bytes) {
  if (proved_) return;
  std::string why = trial(launches, bytes);
  if (!why.empty() && !by_host_) {
    by_host_ = true;
    why_by_host_ = "the test of peer access failed: " + why;
    for (const auto& context : contexts_) {
      const Current current(*context);
      context->synchronize();
    }
    place_mailboxes();
    fill_links(kTrialPatience);
    why = trial(launches, bytes);
  }
  if (!why.empty()) {
    throw Error(ErrorCode::kDevice, "ranks cannot exchange values on these devices: " + why);
  }
  fill_links(kPatience);
  proved_ = true;
}

// Several times, so that both slots are used and flags of a replay are told from those before.
// Why it went wrong; empty if it did not.
std::string Exchange::trial(std::span<const KernelLaunch> launches, int64_t bytes) {
  constexpr int kTimes = 5;
  const auto size = static_cast<size_t>(bytes);
  std::vector<std::unique_ptr<CudaMemory>> from, to;
  for (const auto& context : contexts_) {
    from.push_back(std::make_unique<CudaMemory>(context, bytes));
    to.push_back(std::make_unique<CudaMemory>(context, bytes * static_cast<int64_t>(ranks())));
  }
  std::vector<std::byte> sent(size * ranks()), got(sent.size());
  for (int time = 0; time < kTimes; ++time) {
    for (size_t i = 0; i < sent.size(); ++i) {
      const uint32_t mixed = (static_cast<uint32_t>(i) + 1) * 2654435761U;
      sent[i] = static_cast<std::byte>((mixed >> 24) + static_cast<uint32_t>(time));
    }
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const Context& context = *contexts_[rank];
      const Driver& driver = context.driver();
      const Current current(context);
      driver.check(driver.copy_to_device(from[rank]->range().offset, sent.data() + rank * size,
                                         size, context.stream()),
                   "copy to the device");
      context.synchronize();
    }
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const Context& context = *contexts_[rank];
      const Current current(context);
      std::byte* arguments[] = {from[rank]->address(), to[rank]->address(), link(rank)};
      void* params[] = {&arguments[0], &arguments[1], &arguments[2]};
      const KernelLaunch& it = launches[rank];
      context.driver().check(
          context.driver().launch_kernel(it.function, it.grid[0], it.grid[1], it.grid[2],
                                         it.block[0], it.block[1], it.block[2], it.shared,
                                         context.stream(), params, nullptr),
          "start a kernel");
    }
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const Context& context = *contexts_[rank];
      const Driver& driver = context.driver();
      const Current current(context);
      context.synchronize();
      driver.check(
          driver.copy_to_host(got.data(), to[rank]->range().offset, got.size(), context.stream()),
          "copy from the device");
      context.synchronize();
      if (got != sent && lost().empty()) return name_of(contexts_, rank) + " got other bytes";
    }
    const std::string why = lost();
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace npusim::cuda
