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
#include "cpp/runtime/place.h"

namespace npusim {
namespace {

using Devices = std::vector<std::shared_ptr<Device>>;

// As many bytes on every rank.
class RankMemory final : public Memory {
 public:
  explicit RankMemory(std::vector<std::shared_ptr<Memory>> parts) : parts_(std::move(parts)) {}
  MemoryRange range() const noexcept override {
    return {reinterpret_cast<uintptr_t>(this), 0, parts_.front()->bytes()};
  }
  void check() const override {
    for (const auto& part : parts_) part->check();
  }

  // A range of this memory, on a rank.
  static MemoryRange on(const MemoryRange& range, size_t rank) {
    if (range.storage == 0) return range;  // the host's, which all ranks share
    const auto& memory = *reinterpret_cast<const RankMemory*>(range.storage);
    return memory.parts_[rank]->range().part(static_cast<int64_t>(range.offset), range.bytes);
  }

 private:
  std::vector<std::shared_ptr<Memory>> parts_;
};

struct AllGatherParams {
  int64_t bytes, ranks;
};

// An all_gather's operands.
struct Exchange {
  Operand from, to;
  int64_t bytes;
};

// Commands that ranks run by themselves, or one exchange.
struct Step {
  size_t first;                                     // of its commands in the method
  Method method;                                    // of these alone
  std::vector<std::unique_ptr<CommandList>> lists;  // by rank
  std::optional<Exchange> exchange;
};

[[noreturn]] void refuse(const Program& program, const Method& method, const Command& command,
                         const std::string& why) {
  throw Error(ErrorCode::kFormat, place_of(program, method, command) + ": " +
                                      std::string(kAllGather) + " refuses it: " + why);
}

bool overlap(const Buffer& a, const Buffer& b, const Operand& from, const Operand& to,
             const AllGatherParams& p) {
  if (a.kind != b.kind || (a.kind != BufferKind::kTemp && &a != &b)) return false;
  const int64_t x = a.offset + from.offset, y = b.offset + to.offset;
  return x < y + p.bytes * p.ranks && y < x + p.bytes;
}

Exchange exchange_of(const Program& program, const Method& method, const Command& command,
                     size_t ranks) {
  AllGatherParams p{};
  if (program.kernels[command.kernel].schema != kAllGatherSchema) {
    throw Error(ErrorCode::kVersion,
                "the program calls all_gather with other parameters. Compile "
                "the model again with the npusim that runs it.");
  }
  if (command.params.size() != sizeof p) refuse(program, method, command, "its parameters' size");
  std::memcpy(&p, command.params.data(), sizeof p);
  const auto count = static_cast<int64_t>(ranks);
  if (p.ranks != count) {
    refuse(program, method, command, "it is of " + std::to_string(p.ranks) + " ranks");
  }
  if (command.operands.size() != 2) refuse(program, method, command, "it takes two operands");
  const Operand &from = command.operands[0], &to = command.operands[1];
  const Buffer &x = program.buffers[from.buffer], &y = program.buffers[to.buffer];
  if (p.bytes < 0 || p.bytes > x.bytes - from.offset || p.bytes > (y.bytes - to.offset) / count) {
    refuse(program, method, command, "it passes the end of an operand");
  }
  if (to.access == Access::kRead) refuse(program, method, command, "its result is read only");
  if (overlap(x, y, from, to, p)) refuse(program, method, command, "its operands overlap");
  return {from, to, p.bytes};
}

class RankList final : public CommandList {
 public:
  RankList(std::shared_ptr<const Program> program, const Method& method, const Devices& devices,
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
    const auto run = [](void* self, size_t step, int unit, int) {
      static_cast<RankList*>(self)->run_unit(step, static_cast<size_t>(unit));
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
      const bool exchanges = program_->kernels[command.kernel].name == kAllGather;
      if (!joins || exchanges) {
        steps_.push_back({i, {}, {}, std::nullopt});
        steps_.back().method.name = method.name;
        steps_.back().method.arena_bytes = method.arena_bytes;
      }
      if (exchanges) steps_.back().exchange = exchange_of(*program_, method, command, ranks_);
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
      const Exchange& e = *step.exchange;
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
  Devices devices_;
  std::vector<std::exception_ptr> errors_;  // by rank
  std::atomic<bool> failed_{false};
  std::vector<Step> steps_;
  std::unique_ptr<ThreadPool::Job> job_;  // last: its destructor waits for the workers
};

class HostRanks final : public Device {
 public:
  HostRanks(Devices devices, std::shared_ptr<ThreadPool> pool, Interruption interruption)
      : devices_(std::move(devices)),
        pool_(std::move(pool)),
        interruption_(std::move(interruption)) {}

  std::string_view name() const noexcept override { return devices_.front()->name(); }
  std::string kind() const override {
    return devices_.front()->kind() + ", " + std::to_string(devices_.size()) + " ranks";
  }
  std::string description() const override {
    return std::to_string(devices_.size()) + " ranks of " + devices_.front()->description();
  }
  int rank_count() const noexcept override { return static_cast<int>(devices_.size()); }
  Addressing addressing() const noexcept override { return Addressing::kHandles; }
  bool host_visible() const noexcept override { return false; }
  bool synchronous() const noexcept override { return true; }
  size_t alignment() const noexcept override { return devices_.front()->alignment(); }

  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return on_each([&](Device& device) { return device.allocate(bytes); });
  }
  std::shared_ptr<Memory> allocate_growing(int64_t bytes) override {
    return on_each([&](Device& device) { return device.allocate_growing(bytes); });
  }
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

  void upload(const MemoryRange& to, std::span<const std::byte> from) override {
    const size_t count = to.storage == 0 ? 1 : devices_.size();
    for (size_t i = 0; i < count; ++i) devices_[i]->upload(RankMemory::on(to, i), from);
  }
  void download(std::span<std::byte> to, const MemoryRange& from) override {
    devices_.front()->download(to, RankMemory::on(from, 0));
  }
  void copy(const MemoryRange& to, const MemoryRange& from) override {
    const size_t count = to.storage == 0 ? 1 : devices_.size();
    for (size_t i = 0; i < count; ++i) {
      devices_[i]->copy(RankMemory::on(to, i), RankMemory::on(from, i));
    }
  }

  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return std::make_unique<RankList>(std::move(program), method, devices_, pool_, interruption_);
  }

 private:
  template <typename Make>
  std::shared_ptr<Memory> on_each(const Make& make) {
    std::vector<std::shared_ptr<Memory>> parts;
    for (const auto& device : devices_) parts.push_back(make(*device));
    return std::make_shared<RankMemory>(std::move(parts));
  }

  Devices devices_;
  std::shared_ptr<ThreadPool> pool_;
  Interruption interruption_;
};

}  // namespace

std::shared_ptr<Device> ranks_on_host(Devices devices, std::shared_ptr<ThreadPool> pool,
                                      Interruption interruption) {
  return std::make_shared<HostRanks>(std::move(devices), std::move(pool), std::move(interruption));
}

}  // namespace npusim
