#include "cpp/cuda/ranks.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <mutex>
#include <utility>

#include "cpp/runtime/error.h"
#include "cpp/runtime/rank_commands.h"

namespace npusim::cuda {
namespace {

// The lists of all ranks, which are started together: none waits for one that is not started.
class CudaRankList final : public CommandList {
 public:
  CudaRankList(std::vector<std::unique_ptr<CudaCommandList>> lists,
               std::shared_ptr<Exchange> exchange, std::shared_ptr<const Exchange::Links> links,
               std::vector<size_t> exchanged)
      : exchange_(std::move(exchange)),
        links_(std::move(links)),
        lists_(std::move(lists)),
        exchanged_(std::move(exchanged)) {}
  // Lists wait for their work: what does not come must not keep them.
  ~CudaRankList() override {
    if (!started_) return;
    try {
      settle();
    } catch (const Error&) {  // nobody asked
    }
  }

  void bind(uint32_t buffer, const MemoryRange& at) override {
    if (at.storage == 0) {
      throw Error(ErrorCode::kInput,
                  "ranks on CUDA devices take memory of all of them: make "
                  "buffers with the executor's device");
    }
    for (size_t rank = 0; rank < lists_.size(); ++rank) {
      lists_[rank]->bind(buffer, RankMemory::on(at, rank));
    }
  }
  void submit() override {
    enqueue(0);
    settle();
  }
  void enqueue(uintptr_t) override {
    if (exchange_->by_nccl()) {
      // A stretch of commands of one rank would be a graph; its arguments, and who waits for whom,
      // are plain here.
      for (size_t i = 0; i < exchanged_.size(); ++i) put(i);
      return;
    }
    for (const auto& list : lists_) list->ready();
    together([](CudaCommandList& list) { list.go(); });
  }
  void settle() override {
    started_ = false;
    exchange_->await();
    std::exception_ptr first;
    for (const auto& list : lists_) {
      try {
        list->settle();
      } catch (const Error&) {
        if (!first) first = std::current_exception();
        exchange_->stop();
      }
    }
    settle_exchange(first);
  }
  bool can_fail() const noexcept override { return true; }
  void submit_observed(const std::function<void(size_t)>& after) override {
    for (size_t i = 0; i < exchanged_.size(); ++i) {
      put(i);
      settle();
      after(i);
    }
  }
  void submit_stepwise(const std::function<void(size_t)>& after) override {
    for (size_t i = 0; i < exchanged_.size(); ++i) {
      put(i);
      after(i);
    }
    settle();
  }
  std::string implementation(size_t command) const override {
    return lists_.front()->implementation(command);
  }

 private:
  template <typename Start>
  void together(const Start& start, size_t command = kNone) {
    const std::lock_guard<ForkSafeMutex> locked(exchange_->starting());
    started_ = true;
    try {
      if (command != kNone) bring(command);
      for (const auto& list : lists_) start(*list);
    } catch (...) {
      exchange_->stop();
      const std::exception_ptr why = std::current_exception();
      try {
        settle();
      } catch (const Error&) {  // comes of the first one
      }
      std::rethrow_exception(why);
    }
  }

  void put(size_t command) {
    together([&](CudaCommandList& list) { list.put(command); }, command);
  }

  // Before an exchange's kernels, where NCCL carries its values.
  void bring(size_t command) {
    if (exchanged_[command] == 0 || !exchange_->by_nccl()) return;
    std::vector<std::byte*> x;
    for (const auto& list : lists_) x.push_back(list->first_operand(command));
    exchange_->bring(*links_, x, exchanged_[command]);
  }

  // A rank's own error says more than that others have waited for it.
  void settle_exchange(const std::exception_ptr& first) {
    try {
      exchange_->check();
    } catch (const Error&) {
      if (!first) throw;
    }
    if (first) std::rethrow_exception(first);
  }

  static constexpr size_t kNone = SIZE_MAX;

  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<const Exchange::Links> links_;
  std::vector<std::unique_ptr<CudaCommandList>> lists_;
  std::vector<size_t> exchanged_;  // by command: bytes of x that it exchanges; 0: none
  bool started_ = false;
};

class CudaRanks final : public RankedDevice {
 public:
  CudaRanks(RankDevices devices, Contexts contexts, std::vector<std::string> folders,
            EncodeRank encode)
      : RankedDevice(std::move(devices)),
        exchange_(std::make_shared<Exchange>(std::move(contexts), std::move(folders))),
        encode_(std::move(encode)) {}

  std::string description() const override {
    return RankedDevice::description() + "; " + exchange_->description();
  }

  std::shared_ptr<Memory> allocate_parts(std::span<const std::span<const std::byte>> parts,
                                         bool) override {
    size_t rank = 0;
    return on_each([&](Device& device) {
      const std::span<const std::byte> bytes = parts[rank++];
      std::shared_ptr<Memory> memory = device.allocate_unset(static_cast<int64_t>(bytes.size()));
      device.upload(*memory, 0, bytes);
      return memory;
    });
  }
  std::shared_ptr<Memory> allocate_watched(int64_t bytes) override {
    return on_each([&](Device& device) { return device.allocate_watched(bytes); }, true);
  }
  std::unique_ptr<Download> start_download(std::shared_ptr<const Memory> from) override {
    // Rank 0's, which `from` keeps.
    const auto& memory = static_cast<const RankMemory&>(*from);
    return devices_.front()->start_download({from, memory.first().get()});
  }
  void synchronize() override {
    for (const auto& device : devices_) device->synchronize();
  }

  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    std::vector<size_t> exchanged;
    for (const Command& command : method.commands) {
      exchanged.push_back(exchange_of(*program, method, command).bytes);
    }
    const size_t most =
        exchanged.empty() ? 0 : *std::max_element(exchanged.begin(), exchanged.end());
    const auto links = exchange_->links(most);
    std::vector<std::unique_ptr<CudaCommandList>> lists;
    Exchange::Trial trial;
    for (size_t rank = 0; rank < devices_.size(); ++rank) {
      lists.push_back(encode_(rank, program, method, {exchange_, rank, links}));
      const auto exchanging = lists.back()->first_exchange();
      if (!exchanging) continue;
      if (rank == 0) trial = exchange_of(*program, method, method.commands[exchanging->command]);
      trial.launches.push_back(exchanging->launch);
    }
    if (!trial.launches.empty()) exchange_->prove(trial);
    return std::make_unique<CudaRankList>(std::move(lists), exchange_, links, std::move(exchanged));
  }

 private:
  // What a command exchanges, which for others is nothing.
  Exchange::Trial exchange_of(const Program& program, const Method& method,
                              const Command& command) const {
    if (is_all_gather(program, command)) {
      const AllGather gather = all_gather_of(program, method, command, devices_.size());
      return {.launches = {}, .bytes = static_cast<size_t>(gather.bytes)};
    }
    if (program.kernels[command.kernel].name != kAllReduce) return {};
    const AllReduce reduce = all_reduce_of(program, method, command, devices_.size());
    return {.launches = {},
            .bytes = static_cast<size_t>(reduce.bytes),
            .sums = true,
            .residual = reduce.residual};
  }

  std::shared_ptr<Exchange> exchange_;
  EncodeRank encode_;
};

std::vector<int> parse_ordinals(const std::string& named) {
  std::vector<int> ordinals;
  const std::string ended = named + ",";
  for (size_t begin = 0; begin < ended.size();) {
    const char *from = ended.data() + begin, *to = ended.data() + ended.find(',', begin);
    int ordinal = -1;
    const auto [end, failure] = std::from_chars(from, to, ordinal);
    if (failure != std::errc() || end != to || ordinal < 0) {
      throw Error(ErrorCode::kDevice,
                  "CUDA devices are named by their numbers, such as cuda:2,3; got cuda:" + named);
    }
    ordinals.push_back(ordinal);
    begin = static_cast<size_t>(to - ended.data()) + 1;
  }
  return ordinals;
}

std::string count_of(int devices) {
  return std::to_string(devices) + (devices == 1 ? " CUDA device" : " CUDA devices");
}

}  // namespace

int first_ordinal(const std::string& named) {
  return parse_ordinals(named).front();
}

std::vector<int> rank_ordinals(const std::string& named, int first, int ranks, int devices) {
  std::vector<int> ordinals;
  if (!named.empty()) ordinals = parse_ordinals(named);
  for (int rank = 0; named.empty() && rank < ranks; ++rank) ordinals.push_back(first + rank);
  const std::string split = "the program is split among " + std::to_string(ranks) + " ranks, and ";
  if (std::ssize(ordinals) != ranks) {
    throw Error(ErrorCode::kDevice, split + "cuda:" + named + " names " +
                                        count_of(static_cast<int>(ordinals.size())) +
                                        "; name one for each rank");
  }
  if (ranks > static_cast<int>(Exchange::kMostRanks)) {
    throw Error(ErrorCode::kDevice, split + "on CUDA devices there are at most " +
                                        std::to_string(Exchange::kMostRanks));
  }
  for (const int ordinal : ordinals) {
    if (ordinal < devices) continue;
    throw Error(ErrorCode::kDevice, split + "this machine has " + count_of(devices) +
                                        ", numbered from 0: there is no " +
                                        std::to_string(ordinal) +
                                        ". Compile it for as many ranks as there are devices.");
  }
  return ordinals;
}

std::shared_ptr<Device> ranks_on_devices(RankDevices devices, Contexts contexts,
                                         std::vector<std::string> folders, EncodeRank encode) {
  for (const auto& context : contexts) {
    const Context& first = *contexts.front();
    if (context->arch() == first.arch()) continue;
    throw Error(ErrorCode::kDevice, "ranks run on devices of one architecture: CUDA device " +
                                        std::to_string(first.ordinal()) + " (" + first.name() +
                                        ") is " + first.arch() + ", and " +
                                        std::to_string(context->ordinal()) + " (" +
                                        context->name() + ") is " + context->arch());
  }
  return std::make_shared<CudaRanks>(std::move(devices), std::move(contexts), std::move(folders),
                                     std::move(encode));
}

}  // namespace npusim::cuda
