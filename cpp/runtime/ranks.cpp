// How a submission runs: one job of the pool, whose steps are stretches of commands and exchanges
// in turn. A step's units are the ranks, and all units of one are done before the next begins, so
// no rank waits for another one within a unit: with fewer workers than ranks, or none (after a
// fork), they run one after the other. What a rank throws is kept; every later unit then does
// nothing, and submit throws what the lowest rank threw.
#include "cpp/runtime/ranks.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "cpp/runtime/borrowed_memory.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/rank_commands.h"

namespace npusim {
namespace {

// Commands that ranks run by themselves, or one exchange.
struct Step {
  size_t first;                                     // of its commands in the method
  Method method;                                    // of these alone
  std::vector<std::unique_ptr<CommandList>> lists;  // by rank
  std::optional<AllGather> exchange;
};

class RankList final : public CommandList {
 public:
  RankList(std::shared_ptr<const Program> program, const Method& method, const RankDevices& devices,
           std::shared_ptr<ThreadPool> pool, Interruption interruption)
      : program_(std::move(program)),
        pool_(std::move(pool)),
        interruption_(std::move(interruption)),
        ranks_(devices.size()),
        bound_(ranks_, std::vector<std::byte*>(program_->buffers.size(), nullptr)),
        spare_(ranks_),
        devices_(devices),
        errors_(ranks_) {
    cut(method);
    for (Step& step : steps_) {
      if (step.exchange) continue;
      for (const auto& device : devices)
        step.lists.push_back(device->encode(program_, step.method));
    }
    const auto run = [](void* self, size_t step, ThreadPool::Units ranks, int) {
      for (int rank = ranks.begin; rank < ranks.end; ++rank) {
        static_cast<RankList*>(self)->run_unit(step, static_cast<size_t>(rank));
      }
    };
    std::vector<uint16_t> units(steps_.size(), static_cast<uint16_t>(ranks_));
    job_ = std::make_unique<ThreadPool::Job>(*pool_, std::move(units), run, this);
  }

  void bind(uint32_t buffer, const MemoryRange& at) override {
    const bool written = program_->buffers[buffer].kind == BufferKind::kOutput;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      const bool private_result = rank > 0 && written && at.storage == 0;
      const MemoryRange own = private_result ? spare(rank, buffer) : RankMemory::on(at, rank);
      bound_[rank][buffer] = address_of(own);
      for (Step& step : steps_) {
        if (!step.exchange) step.lists[rank]->bind(buffer, own);
      }
    }
  }

  void submit() override {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    failed_.store(false);
    pool_->run(*job_);
    raise();
    // Ranks' own devices ask nobody: they may run on any thread.
    if (interruption_ && Clock::now() - start > std::chrono::milliseconds(20)) interruption_();
  }

  // Rank 0 is observed; the others have run a stretch when it begins there.
  void submit_observed(const std::function<void(size_t)>& after) override {
    failed_.store(false);
    for (size_t index = 0; index < steps_.size(); ++index) {
      Step& step = steps_[index];
      for (size_t rank = 1; rank < ranks_; ++rank) run_unit(index, rank);
      raise();
      if (step.exchange) {
        run_unit(index, 0);
        raise();
        after(step.first);
      } else {
        step.lists[0]->submit_observed([&](size_t command) { after(step.first + command); });
      }
    }
  }

 private:
  // Init brings weights between its commands, to all ranks: each is a step.
  void cut(const Method& method) {
    const bool each = &method == &program_->init;
    bool joins = false;
    for (size_t i = 0; i < method.commands.size(); ++i) {
      const Command& command = method.commands[i];
      const bool exchanges = is_all_gather(*program_, command);
      if (!joins || exchanges) {
        steps_.push_back({i, {}, {}, std::nullopt});
        steps_.back().method.name = method.name;
        steps_.back().method.arena_bytes = method.arena_bytes;
      }
      if (exchanges) steps_.back().exchange = all_gather_of(*program_, method, command, ranks_);
      steps_.back().method.commands.push_back(command);
      joins = !exchanges && !each;
    }
  }

  MemoryRange spare(size_t rank, uint32_t buffer) {
    if (spare_[rank].empty()) spare_[rank].resize(program_->buffers.size());
    std::shared_ptr<Memory>& memory = spare_[rank][buffer];
    if (!memory) memory = devices_[rank]->allocate(program_->buffers[buffer].bytes);
    return memory->range();
  }

  void run_unit(size_t index, size_t rank) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      const Step& step = steps_[index];
      if (!step.exchange) return step.lists[rank]->submit();
      const AllGather& e = *step.exchange;
      std::byte* to = bound_[rank][e.to.buffer] + e.to.offset;
      for (size_t from = 0; from < ranks_; ++from, to += e.bytes) {
        std::memcpy(to, bound_[from][e.from.buffer] + e.from.offset, static_cast<size_t>(e.bytes));
      }
    } catch (...) {
      errors_[rank] = std::current_exception();
      failed_.store(true);
    }
  }

  void raise() {
    if (!failed_.load()) return;
    std::exception_ptr first;
    for (std::exception_ptr& error : errors_) {
      if (!first) first = error;
      error = nullptr;
    }
    failed_.store(false);
    std::rethrow_exception(first);
  }

  std::shared_ptr<const Program> program_;
  std::shared_ptr<ThreadPool> pool_;
  Interruption interruption_;
  size_t ranks_;
  std::vector<std::vector<std::byte*>> bound_;               // by rank and buffer
  std::vector<std::vector<std::shared_ptr<Memory>>> spare_;  // results of the others
  RankDevices devices_;
  std::vector<std::exception_ptr> errors_;  // by rank
  std::atomic<bool> failed_{false};
  std::vector<Step> steps_;
  std::unique_ptr<ThreadPool::Job> job_;  // last: its destructor waits for the workers
};

class HostRanks final : public RankedDevice {
 public:
  HostRanks(RankDevices devices, std::shared_ptr<ThreadPool> pool, Interruption interruption)
      : RankedDevice(std::move(devices)),
        pool_(std::move(pool)),
        interruption_(std::move(interruption)) {}

  std::shared_ptr<Memory> allocate_parts(std::span<const std::span<const std::byte>> parts,
                                         bool borrow) override {
    size_t rank = 0;
    return on_each([&](Device& device) -> std::shared_ptr<Memory> {
      const std::span<const std::byte> bytes = parts[rank++];
      auto* data = const_cast<std::byte*>(bytes.data());  // kernels only read weights
      if (borrow) return device.import_host({data, bytes.size()}, nullptr);
      std::shared_ptr<Memory> memory = device.allocate(static_cast<int64_t>(bytes.size()));
      device.upload(*memory, 0, bytes);
      return memory;
    });
  }
  // Memory that all ranks share; a result that lies there is rank 0's.
  std::shared_ptr<Memory> import_host(std::span<std::byte> bytes,
                                      std::shared_ptr<const void> owner) override {
    return std::make_shared<BorrowedMemory>(host_range(bytes), bytes.data(), std::move(owner));
  }

  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return std::make_unique<RankList>(std::move(program), method, devices_, pool_, interruption_);
  }

 private:
  std::shared_ptr<ThreadPool> pool_;
  Interruption interruption_;
};

}  // namespace

std::shared_ptr<Device> ranks_on_host(RankDevices devices, std::shared_ptr<ThreadPool> pool,
                                      Interruption interruption) {
  return std::make_shared<HostRanks>(std::move(devices), std::move(pool), std::move(interruption));
}

}  // namespace npusim
