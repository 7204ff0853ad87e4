#include "cpp/cuda/exchange.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
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
  std::byte* gathered;
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

Exchange::Exchange(Contexts contexts, std::vector<std::string> folders)
    : contexts_(std::move(contexts)), folders_(std::move(folders)), ways_(asked_ways()) {
  std::set<int> ordinals;
  for (const auto& context : contexts_) ordinals.insert(context->ordinal());
  shares_ = ordinals.size() < contexts_.size();
  {
    const Current current(*contexts_.front());
    notes_ = std::make_unique<PinnedMemory>(contexts_.front(), sizeof(Notes));
  }
  for (const auto& context : contexts_) {
    epochs_.push_back(
        std::make_unique<CudaMemory>(context, static_cast<int64_t>(kBlocks * sizeof(uint32_t))));
  }
  links_ = make_links();
  take_next_way();
}

// The fastest first.
std::vector<Exchange::Way> Exchange::asked_ways() {
  const std::vector<Way> ways = {Way::kPeers, Way::kNccl, Way::kHost};
  const char* asked = std::getenv("NPUSIM_CUDA_EXCHANGE");
  const std::string_view name = asked == nullptr ? "" : asked;
  if (name.empty()) return ways;
  constexpr std::string_view kNames[] = {"peers", "nccl", "host"};
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found != std::end(kNames)) return {ways[static_cast<size_t>(found - kNames)]};
  throw Error(ErrorCode::kDevice,
              "NPUSIM_CUDA_EXCHANGE is peers, nccl or host; got " + std::string(name));
}

std::string Exchange::name_of(Way way) {
  return way == Way::kPeers ? "peer access" : way == Way::kNccl ? "NCCL" : "the host's memory";
}

void Exchange::give_up(const std::string& why) {
  why_not_ += (why_not_.empty() ? "" : "; ") + why;
}

// Waits: nothing may run meanwhile.
void Exchange::take_next_way() {
  while (!ways_.empty()) {
    way_ = ways_.front();
    ways_.erase(ways_.begin());
    const std::string why = prepare();
    if (!why.empty()) {
      give_up(why);
      continue;
    }
    fill_links();
    return;
  }
  throw Error(ErrorCode::kDevice, "ranks cannot exchange values on these devices: " + why_not_);
}

// What the way needs; why it is none, empty where it is one.
std::string Exchange::prepare() {
  if (way_ == Way::kPeers) {
    if (std::string why = unreached(); !why.empty()) return why;
  }
  if (way_ != Way::kNccl) {
    place_mailboxes();
    return "";
  }
  if (shares_) return "NCCL does not let ranks share a device";
  try {
    nccl_ = std::make_unique<Nccl>(contexts_, folders_);
  } catch (const Error& error) {
    return error.what();
  }
  reserve_gathered();
  return "";
}

std::string Exchange::unreached() const {
  for (size_t from = 0; from < ranks(); ++from) {
    for (size_t to = 0; to < ranks(); ++to) {
      if (contexts_[from]->reaches(*contexts_[to])) continue;
      return cuda::name_of(contexts_, from) + " has no peer access to " +
             cuda::name_of(contexts_, to);
    }
  }
  return "";
}

void Exchange::place_mailboxes() {
  const size_t bytes = mailbox_bytes(ranks());
  for (const auto& context : contexts_) {
    const Current current(*context);
    if (way_ == Way::kHost) {
      host_.push_back(std::make_unique<PinnedMemory>(context, bytes));
    } else {
      mailboxes_.push_back(std::make_unique<PeerMemory>(context, bytes));
    }
  }
}

std::shared_ptr<Exchange::Links> Exchange::make_links() const {
  auto links = std::make_shared<Links>();
  for (const auto& context : contexts_) {
    links->at.push_back(std::make_unique<CudaMemory>(context, static_cast<int64_t>(sizeof(Link))));
  }
  return links;
}

void Exchange::reserve_gathered() {
  links_->gathered.clear();
  for (const auto& context : contexts_) {
    const Current current(*context);
    links_->gathered.push_back(
        std::make_unique<PeerMemory>(context, ranks() * std::max<size_t>(most_, 1)));
  }
}

// Methods that were made for less keep their links, and what is gathered for them.
std::shared_ptr<const Exchange::Links> Exchange::links(size_t bytes) {
  const bool more = bytes > most_;
  most_ = std::max(most_, bytes);
  if (more && by_nccl()) {
    links_ = make_links();
    reserve_gathered();
    fill_links();
  }
  return links_;
}

void Exchange::bring(const Links& links, std::span<std::byte* const> x, size_t bytes) {
  // NCCL may have every rank reach for the others' operands, and those of programs are of pools.
  std::vector<std::byte*> gathered;
  for (size_t rank = 0; rank < ranks(); ++rank) {
    const Driver& driver = contexts_[rank]->driver();
    const Current current(*contexts_[rank]);
    const DeviceAddress own = links.gathered[rank]->offset() + rank * bytes;
    driver.check(driver.copy_on_device(own, reinterpret_cast<DeviceAddress>(x[rank]), bytes,
                                       contexts_[rank]->stream()),
                 "copy on the device");
    gathered.push_back(links.gathered[rank]->address());
  }
  nccl_->all_gather(gathered, bytes);
}

uint64_t Exchange::patience() const noexcept {
  return proved_ ? kPatience : kTrialPatience;
}

// Waits: nothing that exchanges by mailboxes may run meanwhile.
void Exchange::fill_links() {
  for (size_t rank = 0; rank < ranks(); ++rank) {
    const Context& context = *contexts_[rank];
    Link link{.rank = static_cast<uint32_t>(rank),
              .ranks = static_cast<uint32_t>(ranks()),
              .patience = patience(),
              .epochs = reinterpret_cast<uint32_t*>(epochs_[rank]->address()),
              .stop = &notes().stop,
              .lost = reinterpret_cast<std::byte*>(&notes().lost[rank]),
              .mailboxes = {},
              .gathered = by_nccl() ? links_->gathered[rank]->address() : nullptr};
    for (size_t to = 0; to < ranks() && !by_nccl(); ++to) {
      link.mailboxes[to] = way_ == Way::kHost ? host_[to]->data() : mailboxes_[to]->address();
    }
    const Current current(context);
    const Driver& driver = context.driver();
    driver.check(driver.copy_to_device(links_->at[rank]->range().offset, &link, sizeof link,
                                       context.stream()),
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
    if (way_ == Way::kHost) {
      std::memset(host_[rank]->data(), 0, kNumberBytes);
    } else if (way_ == Way::kPeers) {
      driver.check(
          driver.memset_async(mailboxes_[rank]->offset(), 0, kNumberBytes, context.stream()),
          kWhat);
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
  const std::string since = why_not_.empty() ? "" : ", since " + why_not_;
  if (way_ == Way::kHost) {
    return "they exchange values through the host's memory, which is slow" + since;
  }
  if (by_nccl()) return "they exchange values by NCCL " + nccl_->version_text() + since;
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
    return cuda::name_of(contexts_, rank) + " waited " + std::to_string(patience() / kSecond) +
           " s for " + cuda::name_of(contexts_, std::min<size_t>(whom, ranks()) - 1) +
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
  for (std::string why = fault_of(trial); !why.empty(); why = fault_of(trial)) {
    give_up("the test of " + name_of(way_) + " failed: " + why);
    for (const auto& context : contexts_) {
      const Current current(*context);
      context->synchronize();
    }
    take_next_way();
  }
  proved_ = true;
  fill_links();
}

// A trial's memory. What ranks send is found again in what they get: an all_gather brings all of
// it, and of sums all summands but one are zeros.
class Exchange::TrialRun {
 public:
  TrialRun(Exchange& exchange, const Trial& trial)
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
    if (exchange_.by_nccl()) {
      std::vector<std::byte*> x;
      for (const auto& from : from_) x.push_back(from->address());
      exchange_.bring(*exchange_.links_, x, trial_.bytes);
    }
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const Context& context = *exchange_.contexts_[rank];
      const Current current(context);
      std::vector<std::byte*> arguments = {from_[rank]->address()};
      if (trial_.residual) arguments.push_back(residual_[rank]->address());
      arguments.push_back(to_[rank]->address());
      arguments.push_back(exchange_.links_->at[rank]->address());
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
    exchange_.await();
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

  Exchange& exchange_;
  const Trial& trial_;
  std::vector<std::byte> sent_;
  std::vector<std::unique_ptr<CudaMemory>> from_, residual_, to_;  // by rank
};

// Tried several times, so that both slots are used and flags of a replay are told from those
// before. Why it went wrong; empty if it did not. What a library refuses is no more than that.
std::string Exchange::fault_of(const Trial& trial) {
  try {
    TrialRun run(*this, trial);
    for (size_t time = 0; time < 2 * ranks() + 1; ++time) {
      run.fill(time);
      run.start();
      const size_t wrong = run.first_wrong();
      const std::string why = lost();
      if (!why.empty()) return why;
      if (wrong < ranks())
        return cuda::name_of(contexts_, wrong) + " got other bytes than were sent";
    }
  } catch (const Error& error) {
    if (!by_nccl()) throw;
    return error.what();
  }
  return "";
}

}  // namespace npusim::cuda
